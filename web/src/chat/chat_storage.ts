// The conversation of a <capstan-chat> with the attribute `storage`: kept in IndexedDB under that name.

import { type IDBPDatabase, openDB } from "idb";
import type { SavedConversation } from "./chat_tree";

const DATABASE = "capstan-chat";
const STORE = "conversations";
/** Milliseconds between two times that an answer is stored while it grows. */
const GROWING_MS = 1500;

/** The element. */
interface StoredChat extends HTMLElement {
  readonly busy: boolean;
  readonly turns: readonly unknown[];
  save(): SavedConversation;
  restore(saved: SavedConversation): void;
}

export class ChatStorage {
  /** The name under which the shown conversation is kept; null before it is read, and without the attribute. */
  private name: string | null = null;
  private stored = "";
  private due: ReturnType<typeof setTimeout> | undefined;
  private opening: Promise<IDBPDatabase> | null = null;

  constructor(
    private readonly chat: StoredChat,
    private readonly fail: (error: unknown) => void,
  ) {
    for (const change of ["capstan-turns", "capstan-busy", "capstan-clear"])
      chat.addEventListener(change, ({ target }) => target === chat && this.save());
  }

  /** Show the conversation of the attribute's name, unless the element has turns already. */
  async choose(): Promise<void> {
    const { chat } = this;
    const name = chat.getAttribute("storage");
    this.leave();
    if (!name) return;
    try {
      const saved = (await (await this.open()).get(STORE, name)) as SavedConversation | undefined;
      if (chat.getAttribute("storage") !== name) return;
      if (saved && !chat.turns.length) chat.restore(saved);
      this.name = name;
      this.stored = JSON.stringify(chat.save());
    } catch (error) {
      this.fail(error);
    }
  }

  /** Let the element be emptied: what is stored stays. */
  leave(): void {
    clearTimeout(this.due);
    this.name = null;
  }

  private save(): void {
    clearTimeout(this.due);
    const { name, chat } = this;
    if (name === null) return;
    if (chat.busy) this.due = setTimeout(() => this.save(), GROWING_MS);
    const saved = chat.save();
    const now = JSON.stringify(saved);
    if (now === this.stored) return;
    this.stored = now;
    void this.put(name, saved);
  }

  private async put(name: string, saved: SavedConversation): Promise<void> {
    try {
      const database = await this.open();
      if (saved.turns.length) await database.put(STORE, saved, name);
      else await database.delete(STORE, name);
    } catch (error) {
      this.stored = "";
      this.fail(error);
    }
  }

  private open(): Promise<IDBPDatabase> {
    return (this.opening ??= openDB(DATABASE, 1, { upgrade: (database) => void database.createObjectStore(STORE) }));
  }
}
