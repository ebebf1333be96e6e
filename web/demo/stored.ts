// The weights that this browser keeps: listed, verified, removed.

import type { ModelsRequest, ModelsResult, StoredFile } from "capstan-webgpu";
import { button, bytes, element, made, say, tableRow, told } from "./elements";
import type { Engine } from "./engine";

const KEPT = {
  opfs: "Kept in this origin's private file system.",
  cache: "Kept in the Cache API, since this browser has no private file system.",
  memory: "This browser keeps nothing: weights are fetched for each visit.",
};
const DOING = { list: "Looking", verify: "Verifying", evict: "Removing" };

export class Stored {
  private readonly panel = element("stored", HTMLDetailsElement);
  private readonly table = element("stored-table", HTMLTableElement);
  private busy = false;

  constructor(private readonly engine: Engine) {
    this.panel.addEventListener("toggle", () => this.refresh());
  }

  /** List what is stored, if that is in sight and no run is under way. */
  refresh(): void {
    if (this.panel.open && !this.busy) void this.lookAfter("list", null);
  }

  /** While a run is under way nothing can be asked. */
  set blocked(on: boolean) {
    this.busy = on;
    for (const button of this.table.querySelectorAll("button")) button.disabled = on;
    if (!on) this.refresh();
  }

  private async lookAfter(action: ModelsRequest["action"], which: string | null): Promise<void> {
    say("stored-note", DOING[action]);
    try {
      this.show(action, which, await this.engine.ask<ModelsResult>({ kind: "models", action, which }));
    } catch (error) {
      say("stored-note", told(error));
    }
  }

  private show(action: ModelsRequest["action"], which: string | null, { store, files, freed }: ModelsResult): void {
    const about = files.find((file) => keyOf(file) === which);
    let done = "";
    if (action === "evict") done = `${bytes(freed)} removed. `;
    if (action === "verify" && about)
      done = about.suspect.length ? "Damage was found. " : "Every byte is as it was stored. ";
    say("stored-note", `${done}${KEPT[store]}${files.length === 0 && store !== "memory" ? " Nothing is stored." : ""}`);
    this.table.hidden = files.length === 0;
    const rows = files.map((file) => this.row(file));
    element("stored-rows", HTMLTableSectionElement).replaceChildren(...rows);
  }

  private row(file: StoredFile): HTMLTableRowElement {
    const name = (file.sources[0] ?? file.content ?? "").split("/").slice(-2).map(decodeURIComponent).join("/");
    const head = made("span", "", file.sources.length > 1 ? `${name} and ${file.sources.length - 1} more` : name);
    head.title = [...file.sources, file.content ? `content ${file.content}` : ""].join("\n").trim();
    const actions = new DocumentFragment();
    if (file.content) actions.append(this.action("Verify", "verify", file, name));
    actions.append(this.action("Remove", "evict", file, name));
    return tableRow([head], bytes(file.size), stateOf(file), actions);
  }

  private action(text: string, action: ModelsRequest["action"], file: StoredFile, name: string): HTMLButtonElement {
    const verb = button(text, () => void this.lookAfter(action, keyOf(file)), `${text} ${name}`);
    verb.disabled = this.busy;
    return verb;
  }
}

/** The store's key of a file: its content, or the address of an unfinished download. */
export function keyOf(file: StoredFile): string {
  return file.content ?? file.sources[0] ?? "";
}

function stateOf({ content, size, stored_bytes, suspect }: StoredFile): string {
  if (!content) return `${Math.floor((100 * stored_bytes) / Math.max(1, size))} % downloaded`;
  return suspect.length ? `${suspect.length} damaged, fetched again at the next load` : "complete";
}
