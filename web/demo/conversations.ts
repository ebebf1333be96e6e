// The conversations of this page: kept while they grow, continued after a reload, equal in all tabs.

import type { CapstanChat } from "../src/chat/chat";
import { type Change, StoreChanges } from "../src/chat/store_changes";
import { asJson, asMarkdown, fromJson, fromLink, type Given, linkOf, titleOf } from "./conversation_files";
import { ConversationList } from "./conversation_list";
import { ConversationStore, type Kept } from "./conversation_store";
import { button, element, told } from "./elements";
import { systemText, useSystem } from "./settings";
import { chatsSide } from "./side";

/** The key under which a tab keeps the id of its conversation over a reload. */
const TAB = "capstan-conversation";
/** Milliseconds after a change until the conversation is stored. */
const CHANGED_MS = 200;

/** The stored version of a conversation that this page knows. */
interface Place {
  id: string;
  /** When it was changed; null if nothing is stored. */
  known: number | null;
}

export class Conversations {
  private readonly store = new ConversationStore((id) => void this.changedElsewhere(id));
  private readonly list: ConversationList;
  private readonly note = element("chats-note", HTMLParagraphElement);
  private place = newPlace();
  private title: string | null = null;
  private readonly changes: StoreChanges;

  constructor(
    private readonly chat: CapstanChat,
    /** Called with the id of a conversation that was deleted, here or in another tab. */
    private readonly onDelete: (id: string) => void,
  ) {
    this.changes = new StoreChanges(
      chat,
      () => this.shown(),
      (error) => this.tell(troubleOf(error)),
    );
    this.list = new ConversationList({
      open: (kept) => void this.open(kept.id),
      rename: (kept, title) => void this.rename(kept, title),
      link: (kept) => void this.copyLink(kept),
      save: (kept, form) =>
        form === "md"
          ? download(`${kept.title}.md`, "text/markdown", asMarkdown(kept))
          : download(`${kept.title}.json`, "application/json", asJson(kept)),
      delete: (kept) => void this.delete(kept),
    });
    const file = element("chats-file", HTMLInputElement);
    const clicks: Record<string, () => void> = {
      "chats-new": () => this.begin(),
      "chats-import": () => file.click(),
      "chats-export": () => void this.exportAll(),
    };
    for (const [id, work] of Object.entries(clicks)) element(id, HTMLButtonElement).addEventListener("click", work);
    file.addEventListener("change", () => {
      void this.import([...(file.files ?? [])]);
      file.value = "";
    });
    chat.addEventListener("capstan-turns", () => this.changes.soon(CHANGED_MS));
    chat.addEventListener("capstan-busy", () => this.changes.store());
    chat.addEventListener("capstan-clear", () => this.leave());
    // The page may be gone before the next timer.
    document.addEventListener("visibilitychange", () => document.hidden && this.changes.store());
    addEventListener("pagehide", () => this.changes.store());
    addEventListener("hashchange", () => void this.takeLink());
  }

  /** Show the conversation of the page's address, or the one that this tab showed before a reload. */
  async start(): Promise<void> {
    if (await this.takeLink()) return;
    try {
      const kept = await this.store.get(idOfTab() ?? "");
      if (kept && !this.chat.turns.length) this.show(kept);
      await this.refresh();
    } catch (error) {
      this.tell(troubleOf(error));
    }
    this.tell(this.store.trouble);
  }

  /** The id of the conversation that the page shows. */
  get shownId(): string {
    return this.place.id;
  }

  /** The ids of all that are stored, and of the shown one. */
  async ids(): Promise<string[]> {
    return [...(await this.store.all()).map(({ id }) => id), this.place.id];
  }

  /** Begin a new conversation; an answer that is under way is stopped and kept. */
  private begin(): void {
    this.changes.store();
    this.leave();
    this.chat.clear();
    this.chat.focus();
    chatsSide.hide();
    void this.refresh();
  }

  /** Let the page show no stored conversation: the next message begins a new one. */
  private leave(): void {
    this.place = newPlace();
    this.title = null;
    setIdOfTab("");
  }

  private async open(id: string): Promise<void> {
    chatsSide.hide();
    if (id === this.place.id) return;
    // An answer that is under way ends, and its conversation is kept, before this page shows another one.
    await this.chat.stop();
    this.changes.store();
    await this.changes.ended;
    const kept = await this.store.get(id);
    if (kept) this.show(kept);
    this.chat.focus({ preventScroll: true });
    await this.refresh();
  }

  private show(kept: Kept, elsewhere = false): void {
    const { chat } = this;
    chat.restore(kept.conversation);
    useSystem(kept.system);
    this.place = { id: kept.id, known: kept.changed };
    this.title = kept.named ? kept.title : null;
    const last = chat.turns.at(-1);
    if (kept.answering && last)
      last.note = elsewhere ? "being answered in another tab" : "broken off when the page was left";
    this.changes.begin();
    setIdOfTab(kept.id);
  }

  private shown(): Change | null {
    const { place, chat } = this;
    const conversation = chat.save();
    if (!conversation.turns.length && place.known === null) return null;
    const named = this.title !== null;
    const title = this.title ?? titleOf(conversation);
    const value = { title, named, system: systemText(), answering: chat.busy, conversation };
    return { value, put: () => this.put(place, value) };
  }

  private async put(place: Place, shown: Omit<Kept, "id" | "changed">): Promise<void> {
    const { id, known } = place;
    if (!shown.conversation.turns.length) {
      await this.store.delete(id);
      this.gone(id);
      place.known = null;
      return;
    }
    const kept: Kept = { ...shown, id, changed: Math.max(Date.now(), (known ?? 0) + 1) };
    if (!(await this.store.put(kept, known))) {
      // Another tab went on with it: both are kept.
      kept.id = newId();
      await this.store.put(kept, null);
    }
    Object.assign(place, { id: kept.id, known: kept.changed });
    if (place === this.place) setIdOfTab(kept.id);
    this.list.put(kept, this.place.id);
    this.tell(this.store.trouble);
  }

  private async changedElsewhere(id: string): Promise<void> {
    const { place } = this;
    const isShown = (): boolean => this.place === place && place.id === id && !this.chat.busy;
    if (isShown()) {
      this.changes.store();
      await this.changes.ended;
    }
    const kept = await this.store.get(id);
    // A turn of this page that is not stored yet, such as one that has just ended, must not be lost: its store finds
    // the other tab's version, and makes a conversation of its own.
    const replaced = isShown() && this.changes.settled;
    if (replaced && kept && kept.changed !== place.known) this.show(kept, true);
    else if (replaced && !kept && place.known !== null) {
      this.leave();
      this.chat.clear();
    }
    if (kept) this.list.put(kept, this.place.id);
    else this.gone(id);
  }

  private gone(id: string): void {
    this.list.remove(id);
    this.onDelete(id);
  }

  private async refresh(): Promise<void> {
    this.list.show(await this.store.all(), this.place.id);
  }

  // Actions of the list.

  private async rename(kept: Kept, title: string): Promise<void> {
    const { id, changed, ...rest } = kept;
    if (id === this.place.id) {
      this.title = title;
      this.changes.store();
    } else await this.put({ id, known: changed }, { ...rest, title, named: true });
  }

  private async delete(kept: Kept): Promise<void> {
    if (kept.id === this.place.id) {
      await this.chat.stop();
      this.leave();
      this.chat.clear();
    }
    await this.changes.ended;
    await this.store.delete(kept.id);
    this.gone(kept.id);
    const undo = button("Undo", () => {
      this.tell("");
      void this.store.put(kept, null).then(() => this.open(kept.id));
    });
    this.tell(`“${kept.title}” is deleted. `, undo);
  }

  private async copyLink(kept: Kept): Promise<void> {
    try {
      const link = await linkOf(kept);
      await navigator.clipboard.writeText(link);
      this.tell("A link that has the whole conversation is copied. No server sees the conversation.");
    } catch (error) {
      this.tell(told(error));
    }
  }

  private async exportAll(): Promise<void> {
    const all = await this.store.all();
    const list = all.map((kept) => JSON.parse(asJson(kept)) as unknown);
    if (all.length) download("conversations.json", "application/json", JSON.stringify(list, null, 2));
    else this.tell("There is no conversation to export.");
  }

  private async import(files: readonly File[]): Promise<void> {
    try {
      const given = (await Promise.all(files.map(async (file) => fromJson(await file.text(), file.name)))).flat();
      await this.take(given);
      this.tell(given.length === 1 ? "" : `${given.length} conversations are imported.`);
    } catch (error) {
      this.tell(told(error));
    }
  }

  /** Import the conversation of the page's address; false if it has none. */
  private async takeLink(): Promise<boolean> {
    try {
      const given = await fromLink(location.hash);
      if (!given) return false;
      history.replaceState(null, "", location.pathname + location.search);
      await this.take([given]);
    } catch (error) {
      this.chat.showError(error);
    }
    return true;
  }

  /** Keep conversations from elsewhere, and show the last one. */
  private async take(given: readonly Given[]): Promise<void> {
    let last = "";
    for (const each of given) {
      last = newId();
      await this.store.put({ ...each, id: last, named: true, answering: false, changed: Date.now() }, null);
    }
    await this.open(last);
  }

  private tell(text: string, ...more: HTMLElement[]): void {
    this.note.replaceChildren(text, ...more);
  }
}

function newPlace(): Place {
  return { id: newId(), known: null };
}

function newId(): string {
  // Not every address has crypto.randomUUID.
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (each) => each.toString(36)).join("-");
}

function troubleOf(error: unknown): string {
  const { name } = error as Error;
  if (name !== "QuotaExceededError") return `The conversation is not kept: ${told(error)}`;
  return "The conversation is not kept: this browser's storage is full. Delete conversations or stored models.";
}

function idOfTab(): string | null {
  try {
    return sessionStorage.getItem(TAB);
  } catch {
    return null; // A browser that keeps nothing.
  }
}

function setIdOfTab(id: string): void {
  try {
    sessionStorage.setItem(TAB, id);
  } catch {
    // A reload then begins a new conversation; the list tells that nothing is kept.
  }
}

function download(name: string, type: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replaceAll(/[\\/:*?"<>|\n]+/g, " ").trim();
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
