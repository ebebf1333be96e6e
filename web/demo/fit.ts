// Whether the chosen model would fit this machine, and what of it is stored here, before anything is downloaded.

import type { ModelsResult, PlanResult, StoredFile } from "capstan-webgpu";
import { belongs } from "../src/page/model_of_file";
import { bytes, element, say, told } from "./elements";
import type { Engine } from "./engine";
import { type Chosen, chosenModel } from "./models";
import { FormError, readSettings, type Settings } from "./settings";

export class Fit {
  private readonly button = element("fit", HTMLButtonElement);
  /** The last question. */
  private asked = "";

  constructor(private readonly engine: Engine) {
    this.button.addEventListener("click", () => void this.ask());
  }

  /** While a run is under way nothing can be asked. */
  set blocked(on: boolean) {
    this.button.disabled = on;
  }

  /** Another model may be chosen, or another device: the facts of the last one no longer hold. */
  changed(): void {
    if (this.asked && this.asked !== this.named()?.key) this.tell("");
  }

  private named(): { key: string; model: Chosen; settings: Settings } | null {
    try {
      const model = chosenModel();
      const settings = readSettings();
      return { key: JSON.stringify([model.key, settings.device, settings.dtype]), model, settings };
    } catch (error) {
      if (error instanceof FormError) return null;
      throw error;
    }
  }

  private async ask(): Promise<void> {
    const named = this.named();
    if (!named) return this.tell("Choose a model first.");
    const { key, model, settings } = named;
    this.asked = key;
    this.button.disabled = true;
    this.tell("Reading the model's graph");
    try {
      const verdict = await fitOf(this.engine, model, settings);
      const { files } = await this.engine.ask<ModelsResult>({ kind: "models", action: "list", which: null });
      const kept = storedOf(model, files).reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
      if (this.asked === key) this.tell(`${verdict} ${storage(kept)}`);
    } catch (error) {
      this.tell(told(error));
    } finally {
      this.button.disabled = false;
    }
  }

  private tell(what: string): void {
    say("fit-note", what);
  }
}

/** Whether a model fits this machine, and the memory that it needs. Its graph is read. */
export async function fitOf(
  engine: Engine,
  { folder }: Chosen,
  { device, dtype }: Pick<Settings, "device" | "dtype">,
): Promise<string> {
  return verdict(await engine.ask<PlanResult>({ kind: "plan", model: folder, device, dtype }));
}

/** The stored weights of a model. */
export function storedOf(model: Chosen, files: readonly StoredFile[]): StoredFile[] {
  return files.filter(({ sources }) => sources.some((source) => belongs(source, model.folder)));
}

function verdict(plan: PlanResult): string {
  if (!plan.fits) return `Does not fit: ${plan.reason}.`;
  const tokens = (count: number): string => `${count.toLocaleString("en")} tokens`;
  const about = plan.exact ? "" : "about ";
  const weights = `${bytes(plan.pools.weights)} of it weights`;
  const need = `${about}${bytes(plan.bytes)} for ${tokens(plan.max_length)}, ${weights}`;
  const { largest_max_length: largest, context_length: context } = plan;
  const most = largest !== null && largest < context ? `; ${tokens(largest)} at most` : "";
  const parts = plan.split.length ? `; ${plan.split.length} large weights in parts` : "";
  const risk = plan.tight && ` At risk: ${plan.tight}.`;
  return `Fits ${plan.device}: ${need}${most}${parts}.${risk}`;
}

function storage(kept: number): string {
  return kept ? `${bytes(kept)} of it is stored in this browser.` : "Nothing of it is stored in this browser.";
}
