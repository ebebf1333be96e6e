// All models of the list: what is known of each, whether it fits this machine, what of it is stored; to use or to delete.

import type { ModelsResult, StoredFile } from "capstan-webgpu";
import { lacksGpu } from "./diagnostics";
import { button, bytes, element, made, say, told } from "./elements";
import type { Engine } from "./engine";
import { fitOf, storedOf } from "./fit";
import { choose, chosenKey, type Listed, listedModels } from "./models";
import type { Running } from "./running";
import { readSettings } from "./settings";
import { optionsSide } from "./side";
import { keyOf } from "./stored";

export class Picker {
  readonly dialog = element("models", HTMLDialogElement);
  private readonly list = element("models-list", HTMLUListElement);

  constructor(
    private readonly engine: Engine,
    private readonly running: Running,
  ) {
    for (const id of ["chosen", "models-open"])
      element(id, HTMLButtonElement).addEventListener("click", () => void this.open());
  }

  private async open(): Promise<void> {
    optionsSide.hide();
    this.show(null);
    this.dialog.showModal();
    if (this.running.chat.busy) say("models-note", "A run is under way; what is stored is told when it has ended.");
    else await this.refresh();
  }

  /** Tell what is stored, after files were removed if some are given. */
  private async refresh(removed: readonly StoredFile[] = []): Promise<void> {
    say("models-note", removed.length ? "Removing" : "Looking at what is stored");
    try {
      const ask = (action: "list" | "evict", which: string | null): Promise<ModelsResult> =>
        this.engine.ask<ModelsResult>({ kind: "models", action, which });
      for (const file of removed) await ask("evict", keyOf(file));
      const { store, files } = await ask("list", null);
      this.show(files);
      say("models-note", await storage(store, files));
    } catch (error) {
      say("models-note", told(error));
    }
  }

  /** Show the list; null for files that are not known. */
  private show(files: readonly StoredFile[] | null): void {
    const chosen = chosenKey();
    const listed = listedModels();
    const best = recommended(listed);
    this.list.replaceChildren(
      ...listed.map((each) => {
        const marks = [
          ...(each === best ? ["recommended here"] : []),
          ...(each.model.key === chosen ? ["in use"] : []),
        ];
        return this.row(each, files, marks);
      }),
    );
  }

  private row(listed: Listed, files: readonly StoredFile[] | null, marks: string[]): HTMLLIElement {
    const { model, about, lack } = listed;
    const { name } = model;
    const row = made("li", "model");
    if (marks.includes("in use")) row.ariaCurrent = "true";
    const head = made("div", "model-head");
    head.append(made("strong", "", name), made("span", "help", marks.join(", ")));
    const stored = files ? storedOf(model, files) : [];
    const state = made("p", "help", files ? stateOf(stored) : "");
    const fits = made("p", "help", lack ? `Does not fit: it ${lack}.` : "");
    fits.role = "status";
    const actions = made("div", "row");
    const use = button("Use", () => this.use(listed), `Use ${name}`);
    const fit = button("Does it fit?", () => void this.ask(listed, fit, fits), `Does it fit? ${name}`);
    actions.append(use, fit);
    if (stored.length)
      actions.append(button("Delete", () => void this.refresh(stored), `Delete what is stored of ${name}`));
    if (this.running.chat.busy) for (const each of actions.children) (each as HTMLButtonElement).disabled = true;
    row.append(head, made("p", "help", about), state, fits, actions);
    return row;
  }

  private use({ model }: Listed): void {
    choose(model);
    this.dialog.close();
    this.running.chat.focus();
  }

  private async ask({ model }: Listed, asking: HTMLButtonElement, answer: HTMLElement): Promise<void> {
    asking.disabled = true;
    answer.textContent = "Reading the model's graph";
    try {
      answer.textContent = await fitOf(this.engine, model, readSettings());
    } catch (error) {
      answer.textContent = told(error);
    }
    asking.disabled = false;
  }
}

/** The largest model of the list that this machine's GPU runs; without a GPU the smallest one. */
function recommended(listed: readonly Listed[]): Listed | undefined {
  const known = listed.filter(({ parameters, lack }) => parameters && !lack);
  const bySize = known.sort((one, other) => one.parameters! - other.parameters!);
  return lacksGpu() ? bySize[0] : bySize.at(-1);
}

function stateOf(stored: readonly StoredFile[]): string {
  if (!stored.length) return "Nothing of it is stored.";
  const kept = stored.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
  const whole = stored.every(({ content }) => content !== null);
  const all = stored.reduce((sum, { size }) => sum + size, 0);
  return whole ? `Stored in this browser: ${bytes(kept)}.` : `${bytes(kept)} of ${bytes(all)} are stored.`;
}

/** Tells how much is stored, and how much more has room. */
async function storage(store: ModelsResult["store"], files: readonly StoredFile[]): Promise<string> {
  if (store === "memory") return "This browser stores nothing: weights are fetched for each visit.";
  const kept = files.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
  const { quota = 0, usage = 0 } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
  const more = quota > usage ? `; there is room for ${bytes(quota - usage)} more` : "";
  return `${kept ? bytes(kept) : "Nothing"} of weights is stored in this browser${more}.`;
}
