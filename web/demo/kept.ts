// The computed states of conversations, which this browser keeps for later visits: the option, their bytes, their removal.

import type { CapstanEvent, SavedSession } from "capstan-webgpu";
import { button, bytes, clause, element, say, told } from "./elements";
import type { Engine } from "./engine";

type KeptEvent = Extract<CapstanEvent, { kind: "kept" }>;

/** The key of the option in localStorage. */
const OPTION = "capstan-keep";
/** The beginning of this page's names: other pages of the origin may have theirs. */
const OWN = "demo ";

export class KeptComputations {
  private readonly option = element("keep", HTMLInputElement);
  private readonly panel = element("this-page", HTMLDetailsElement);
  private readonly empty = button("Empty", () => void this.removeAll());
  /** Whether the user was told that something was not kept: once is enough. */
  private told = false;

  constructor(private readonly engine: Engine) {
    element("keep-actions", HTMLElement).append(this.empty);
    this.option.checked = optionOfBrowser();
    this.option.addEventListener("change", () => {
      try {
        localStorage.setItem(OPTION, this.option.checked ? "" : "off");
      } catch {
        // It holds until the page is left.
      }
    });
    addEventListener("storage", () => (this.option.checked = optionOfBrowser()));
    this.panel.addEventListener("toggle", () => this.panel.open && void this.show());
  }

  /** The name under which the computation of a conversation is kept; null if nothing shall be kept. */
  nameOf(conversation: string): string | null {
    return this.option.checked ? OWN + conversation : null;
  }

  /** Remove what was computed for a conversation that is deleted. */
  forget(conversation: string): void {
    void this.remove(OWN + conversation).catch(() => undefined);
  }

  /** Remove what is left of conversations that are none of these: a page may end before it has removed theirs. */
  async tidy(conversations: readonly string[]): Promise<void> {
    const names = new Set(conversations.map((id) => OWN + id));
    for (const { id } of await this.list()) if (!names.has(id)) await this.remove(id);
  }

  /** Take the report of a computation that was kept, or not; returns what the user should read of it, else empty. */
  take({ reason }: KeptEvent): string {
    if (this.panel.open) void this.show();
    if (!reason || this.told) return "";
    this.told = true;
    // The name of the file says nothing to the user.
    return `This conversation will be computed again after a reload: ${clause(reason).replace(/^\S+\.state: /, "")}`;
  }

  private async show(): Promise<void> {
    try {
      const found = await this.list();
      const size = found.reduce((sum, each) => sum + each.bytes, 0);
      this.empty.disabled = size === 0;
      const count = found.filter(({ bytes }) => bytes).length;
      say(
        "keep-size",
        size
          ? `Now ${bytes(size)} for ${count === 1 ? "a conversation" : `${count} conversations`}.`
          : "Nothing is kept now.",
      );
    } catch (error) {
      say("keep-size", told(error));
    }
  }

  private async removeAll(): Promise<void> {
    try {
      for (const { id } of await this.list()) await this.remove(id);
    } finally {
      await this.show();
    }
  }

  private async list(): Promise<SavedSession[]> {
    const found = await this.engine.ask<SavedSession[]>({ kind: "saved_sessions", action: "list", id: null });
    return found.filter(({ id }) => id.startsWith(OWN));
  }

  private remove(id: string): Promise<unknown> {
    return this.engine.ask({ kind: "saved_sessions", action: "delete", id });
  }
}

function optionOfBrowser(): boolean {
  try {
    return localStorage.getItem(OPTION) !== "off";
  } catch {
    return true; // A browser that keeps nothing; the first attempt says so.
  }
}
