// Conversations that this browser keeps: in IndexedDB, or for this visit only where the browser keeps nothing.

import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { SavedConversation } from "../src/chat/chat";

/** A conversation as it is kept. */
export interface Kept {
  id: string;
  title: string;
  /** Whether the user gave the title. */
  named: boolean;
  /** When it changed last, in milliseconds since 1970. */
  changed: number;
  /** The system message; empty for none. */
  system: string;
  /** Whether an answer was under way. */
  answering: boolean;
  conversation: SavedConversation;
}

/** Compares two conversations: the one that changed last is the first. */
export function lastFirst(one: Kept, other: Kept): number {
  return other.changed - one.changed;
}

interface Schema extends DBSchema {
  conversations: { key: string; value: Kept; indexes: { changed: number } };
}

const NAME = "capstan-conversations";
const STORE = "conversations";

export class ConversationStore {
  /** Why conversations are lost with this page; empty if they are kept. */
  trouble = "";
  private readonly memory = new Map<string, Kept>();
  private readonly others = new BroadcastChannel(NAME);
  private readonly opening: Promise<IDBPDatabase<Schema> | null>;

  constructor(
    /** Called when another tab changed or deleted a conversation. */
    onChange: (id: string) => void,
  ) {
    this.opening = this.open();
    this.others.addEventListener("message", ({ data }) => onChange(data as string));
  }

  /** All conversations, the one that changed last first. */
  async all(): Promise<Kept[]> {
    const database = await this.opening;
    const kept = database ? await database.getAllFromIndex(STORE, "changed") : [...this.memory.values()];
    return kept.sort(lastFirst);
  }

  async get(id: string): Promise<Kept | undefined> {
    const database = await this.opening;
    return database ? database.get(STORE, id) : this.memory.get(id);
  }

  /**
   * Keep a conversation, unless another tab changed it after `known`: then nothing is written, and the result is false.
   * Throws a DOMException, "QuotaExceededError" if the browser's storage is full.
   */
  async put(kept: Kept, known: number | null): Promise<boolean> {
    const database = await this.opening;
    if (!database) {
      this.memory.set(kept.id, kept);
      return true;
    }
    const transaction = database.transaction(STORE, "readwrite");
    const found = await transaction.store.get(kept.id);
    const ours = !found || found.changed === known;
    if (ours) await transaction.store.put(kept);
    await transaction.done;
    if (ours) this.others.postMessage(kept.id);
    return ours;
  }

  async delete(id: string): Promise<void> {
    const database = await this.opening;
    this.memory.delete(id);
    await database?.delete(STORE, id);
    this.others.postMessage(id);
  }

  private async open(): Promise<IDBPDatabase<Schema> | null> {
    try {
      return await openDB<Schema>(NAME, 1, {
        upgrade: (database) => {
          database.createObjectStore(STORE, { keyPath: "id" }).createIndex("changed", "changed");
        },
      });
    } catch {
      this.trouble = "This browser keeps nothing for this page: conversations are gone when it is left.";
      return null;
    }
  }
}
