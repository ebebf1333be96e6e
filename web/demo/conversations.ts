// The conversations of this page: kept while they grow, continued after a reload, equal in all tabs.

import type { CapstanChat } from "../src/chat/chat";
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
/** The same for an answer that grows. */
const GROWING_MS = 1500;

export class Conversations {
  private readonly store = new ConversationStore((id) => void this.changedElsewhere(id));
  private readonly list: ConversationList;
  private readonly note = element("chats-note", HTMLParagraphElement);
  private id = newId();
  private title: string | null = null;
  /** When the stored version that this page shows was changed; null if none is stored. */
  private known: number | null = null;
  /** That version, as JSON. */
  private stored = "";
  private saving: Promise<void> = Promise.resolve();
  private due: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly chat: CapstanChat) {
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
    chat.addEventListener("capstan-turns", () => this.soon(CHANGED_MS));
    chat.addEventListener("capstan-busy", () => this.save());
    chat.addEventListener("capstan-clear", () => this.leave());
    // The page may be gone before the next timer.
    document.addEventListener("visibilitychange", () => document.hidden && this.save());
    addEventListener("pagehide", () => this.save());
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

  /** Begin a new conversation; an answer that is under way is stopped and kept. */
  private begin(): void {
    this.save();
    this.leave();
    this.chat.clear();
    this.chat.focus();
    chatsSide.hide();
    void this.refresh();
  }

  /** Let the page show no stored conversation: the next message begins a new one. */
  private leave(): void {
    Object.assign(this, { id: newId(), title: null, known: null, stored: "" });
    setIdOfTab("");
  }

  private async open(id: string): Promise<void> {
    chatsSide.hide();
    if (id === this.id) return;
    // An answer that is under way ends, and its conversation is kept, before this page shows another one.
    await this.chat.stop();
    this.save();
    await this.saving;
    const kept = await this.store.get(id);
    if (kept) this.show(kept);
    this.chat.focus({ preventScroll: true });
    await this.refresh();
  }

  private show(kept: Kept, elsewhere = false): void {
    const { chat } = this;
    chat.restore(kept.conversation);
    useSystem(kept.system);
    Object.assign(this, { id: kept.id, title: kept.named ? kept.title : null, known: kept.changed });
    const last = chat.turns.at(-1);
    if (kept.answering && last)
      last.note = elsewhere ? "being answered in another tab" : "broken off when the page was left";
    this.stored = JSON.stringify(this.present());
    setIdOfTab(kept.id);
  }

  /** All that is stored of the conversation, as this page shows it. */
  private present(): Omit<Kept, "id" | "changed"> {
    const conversation = this.chat.save();
    const named = this.title !== null;
    const title = this.title ?? titleOf(conversation);
    return { title, named, system: systemText(), answering: this.chat.busy, conversation };
  }

  private soon(delay: number): void {
    clearTimeout(this.due);
    this.due = setTimeout(() => this.save(), delay);
  }

  /** Store the conversation if it changed, after what is being stored. */
  private save(): void {
    clearTimeout(this.due);
    if (this.chat.busy) this.soon(GROWING_MS);
    const { id } = this;
    const present = this.present();
    const { turns } = present.conversation;
    const now = JSON.stringify(present);
    if (now === this.stored || (!turns.length && this.known === null)) return;
    this.stored = now;
    this.saving = this.saving.then(async () => {
      try {
        if (turns.length) await this.put(id, present);
        else await this.forget(id);
        this.tell(this.store.trouble);
      } catch (error) {
        if (this.id === id) this.stored = "";
        this.tell(troubleOf(error));
      }
      await this.refresh();
    });
  }

  private async put(id: string, present: Omit<Kept, "id" | "changed">): Promise<void> {
    const mine = this.id === id;
    const known = mine ? this.known : ((await this.store.get(id))?.changed ?? null);
    const kept: Kept = { ...present, id, changed: Math.max(Date.now(), (known ?? 0) + 1) };
    if (!(await this.store.put(kept, known))) {
      // Another tab went on with it: both are kept.
      kept.id = newId();
      await this.store.put(kept, null);
    }
    if (!mine || this.id !== id) return;
    Object.assign(this, { id: kept.id, known: kept.changed });
    setIdOfTab(kept.id);
  }

  private async forget(id: string): Promise<void> {
    await this.store.delete(id);
    if (this.id === id) this.known = null;
  }

  private async changedElsewhere(id: string): Promise<void> {
    if (id === this.id && !this.chat.busy) {
      // Unstored turns of this page must not be lost: they become a conversation of their own.
      this.save();
      await this.saving;
      const kept = await this.store.get(id);
      const shown = id === this.id && !this.chat.busy;
      if (shown && kept && kept.changed !== this.known) this.show(kept, true);
      else if (shown && !kept && this.known !== null) {
        this.leave();
        this.chat.clear();
      }
    }
    await this.refresh();
  }

  private async refresh(): Promise<void> {
    this.list.show(await this.store.all(), this.id);
  }

  // Actions of the list.

  private async rename(kept: Kept, title: string): Promise<void> {
    if (kept.id === this.id) {
      this.title = title;
      return this.save();
    }
    const { id: _, changed: __, ...rest } = kept;
    await this.put(kept.id, { ...rest, title, named: true });
    await this.refresh();
  }

  private async delete(kept: Kept): Promise<void> {
    if (kept.id === this.id) {
      await this.chat.stop();
      this.leave();
      this.chat.clear();
    }
    await this.saving;
    await this.store.delete(kept.id);
    const undo = button("Undo", () => {
      this.tell("");
      void this.store.put(kept, null).then(() => this.open(kept.id));
    });
    this.tell(`“${kept.title}” is deleted. `, undo);
    await this.refresh();
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
