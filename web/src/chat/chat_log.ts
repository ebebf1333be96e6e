// The turns of <capstan-chat> on the page, in step with the conversation.

import type { Parts } from "./chat_parts";
import { ChatTree } from "./chat_tree";
import type { ChatTurn } from "./chat_turn";

/** The distance from its end, in pixels, within which a log counts as read to its end. */
const NEAR_END = 40;

export class ChatLog {
  readonly tree = new ChatTree();

  constructor(
    private readonly parts: Parts,
    /** Called when turns came, went, or took the place of others. */
    private readonly onChange: () => void,
  ) {}

  /** Show the turns that the tree shows, the last one in sight if there are new ones. */
  update(): void {
    const { log, list, welcome } = this.parts;
    const turns = this.tree.shown;
    const other = turns.findIndex(({ element }, at) => list.children[at] !== element);
    const kept = other < 0 ? turns.length : other;
    for (const gone of [...list.children].slice(kept)) gone.remove();
    list.append(...turns.slice(kept).map(({ element }) => element));
    for (const turn of turns) turn.showBeside(this.tree.beside(turn));
    welcome.hidden = turns.length > 0;
    if (kept < turns.length) log.scrollTop = log.scrollHeight;
    this.onChange();
  }

  /** Take deleted turns off the page. */
  forget(gone: readonly ChatTurn[]): void {
    for (const turn of gone) turn.discard();
    this.update();
  }

  /** Let an answer grow, and keep its end in sight; a user who scrolled back to read is left there. */
  grow(add: () => void): void {
    const { log } = this.parts;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
    add();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}
