// The conversation of a <capstan-chat> with the attribute `storage`: kept in IndexedDB under that name.

import { type IDBPDatabase, openDB } from "idb";
import type { SavedConversation } from "./chat_tree";
import { type Change, StoreChanges } from "./store_changes";

const DATABASE = "capstan-chat";
const STORE = "conversations";

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
  private readonly changes: StoreChanges;
  private opening: Promise<IDBPDatabase> | null = null;

  constructor(
    private readonly chat: StoredChat,
    private readonly fail: (error: unknown) => void,
  ) {
    this.changes = new StoreChanges(chat, () => this.shown(), fail);
    for (const change of ["capstan-turns", "capstan-busy", "capstan-clear"])
      chat.addEventListener(change, ({ target }) => target === chat && this.changes.store());
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
      this.changes.begin();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Let the element be emptied: what is stored stays. */
  leave(): void {
    this.name = null;
  }

  private shown(): Change | null {
    const { name } = this;
    if (name === null) return null;
    const saved = this.chat.save();
    return { value: saved, put: () => this.put(name, saved) };
  }

  private async put(name: string, saved: SavedConversation): Promise<void> {
    const database = await this.open();
    if (saved.turns.length) await database.put(STORE, saved, name);
    else await database.delete(STORE, name);
  }

  private open(): Promise<IDBPDatabase> {
    return (this.opening ??= openDB(DATABASE, 1, { upgrade: (database) => void database.createObjectStore(STORE) }));
  }
}
