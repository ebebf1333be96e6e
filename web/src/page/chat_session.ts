// A conversation of its own: its messages, and what was computed for them, are kept from turn to turn.

import { answerMessage } from "./answer_message";
import { refused } from "../wire/errors";
import { readOptions } from "./arguments";
import { type Kinds, read, shown, whole } from "./kinds";
import { type ChatOptions, storedId } from "./options";
import { heldMessage, plainMessages } from "./pictures";
import type { Message, RestoredSession, SaveResult, SaveSessionRequest } from "../wire/protocol";
import type { Run } from "./run";

/** Answers the last of the messages, with what was computed for the session of that name. */
export type Answer = (messages: readonly Message[], options: ChatOptions, session: string) => Run;
/** Gives back what was computed for a session. */
export type End = (session: string) => Promise<void>;
/** Stores a session. */
export type Save = (request: SaveSessionRequest) => Promise<SaveResult>;

export interface SaveOptions {
  /** The most bytes of storage for what was computed of all saved sessions together; 1 GB unless given. */
  budget?: number;
  /**
   * Store numbers in 8 or 4 bits, in about a half or a third of the bytes of float16: answers after the restoration may
   * differ. The default, 0, keeps the numbers of the cache.
   */
  bits?: 0 | 4 | 8;
}

const SAVE_KINDS: Kinds = {
  budget: whole(0, Number.MAX_SAFE_INTEGER),
  bits: { words: "0, 4 or 8", is: (value) => value === 0 || value === 4 || value === 8 },
};
const BUDGET = 1e9;

let count = 0;

/** The name of a new session in the worker. */
export function nextName(): string {
  return `session ${++count}`;
}

/**
 * Messages to which a model's answers are added. Change them with `rewind` and `edit`: a turn runs the model on what differs
 * from the turn before only. Sessions of one model take turns, and each holds a KV cache until `close`.
 */
export class Session {
  private kept: Message[];
  private running = false;
  private closed = false;

  constructor(
    private readonly answer: Answer,
    private readonly end: End,
    private readonly keep: Save,
    messages: readonly Message[] = [],
    private readonly name: string = nextName(),
    /** For a session of `Capstan.restore`: the tokens that need not be computed again, and why there are none. */
    readonly restored: Readonly<Omit<RestoredSession, "messages">> | null = null,
  ) {
    this.kept = messages.map(heldMessage);
  }

  /** The conversation so far, including the answers. */
  get messages(): readonly Message[] {
    return [...this.kept];
  }

  /**
   * Say something, a text as the user, or one or several messages, and have it answered. The answer, without its
   * reasoning, is a message once the run's result is there, as far as it came if the run was aborted; it is a part of the
   * last message if it continues that one. If the run fails, the session is what it was before. Calls of tools are
   * `tool_calls` of that message: send what they returned as messages of the role "tool".
   */
  send(message: string | Message | readonly Message[], options: ChatOptions = {}): Run {
    this.requireIdle();
    const said = typeof message === "string" ? { role: "user", content: message } : message;
    return this.perform([...this.kept, ...[said].flat().map(heldMessage)], options);
  }

  /** Answer the last message that is not the model's once more; the answers after it go. */
  regenerate(options: ChatOptions = {}): Run {
    this.requireIdle();
    let length = this.kept.length;
    while (length > 0 && this.kept[length - 1]!.role === "assistant") length--;
    if (length === 0) throw refused("there is no message to answer; send one");
    return this.perform(this.kept.slice(0, length), options);
  }

  /** Go back to the first `count` messages. */
  rewind(count: number): void {
    this.requireIdle();
    this.requirePlace(count, this.kept.length);
    this.kept.length = count;
  }

  /** Say something else in the place of a message, and have it answered; what came after it goes. */
  edit(place: number, message: string | Message, options: ChatOptions = {}): Run {
    this.requireIdle();
    this.requirePlace(place, this.kept.length - 1);
    const said = typeof message === "string" ? { ...this.kept[place]!, content: message } : message;
    return this.perform([...this.kept.slice(0, place), heldMessage(said)], options);
  }

  /**
   * Another session that begins with these messages. With `prefixCache` in the options of the load its first turn takes
   * over what was computed for this one, else it is computed again.
   */
  fork(): Session {
    this.requireIdle();
    return new Session(this.answer, this.end, this.keep, this.kept);
  }

  /**
   * Store its messages and what was computed for them in this origin's storage, in place of the last session of that id:
   * `Capstan.restore(id)` continues it, also in a later page. Pictures are stored with their messages. Rejects with
   * StorageError if the storage is full or the budget too small, and with UnsupportedModelError for a model with
   * recurrent states.
   */
  async save(id: string, options: SaveOptions = {}): Promise<SaveResult> {
    this.requireIdle();
    const { budget = BUDGET, bits = 0 } = readOptions("the options", options, SAVE_KINDS);
    requireId(id);
    const messages = await plainMessages(this.kept);
    return this.keep({ kind: "save_session", session: this.name, id, messages, budget, bits });
  }

  /** Give back its KV cache. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    await this.end(this.name);
  }

  private perform(asked: Message[], options: ChatOptions): Run {
    const before = this.kept;
    const run = this.answer(asked, options, this.name);
    this.running = true;
    this.kept = asked;
    void run.result.then(
      (result) => {
        this.running = false;
        const begun = options.continueFinalMessage ? asked.at(-1) : undefined;
        this.kept = [...(begun ? asked.slice(0, -1) : asked), answerMessage(result, begun)];
      },
      () => {
        this.running = false;
        this.kept = before;
      },
    );
    return run;
  }

  private requireIdle(): void {
    if (this.closed) throw refused("the session was closed; begin another one");
    if (this.running) throw refused("a run of this session is under way; await its result, or abort it, first");
  }

  private requirePlace(place: number, last: number): void {
    if (!Number.isInteger(place) || place < 0 || place > last)
      throw refused(`${shown(place)} is no place among ${this.kept.length} messages; it must be from 0 to ${last}`);
  }
}

/** Throw OptionError unless this can be the id of a saved session. */
export function requireId(id: unknown): void {
  read("the id", id, storedId);
}
