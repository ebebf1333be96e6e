// Opens the drawer, which is loaded when it is opened for the first time, and asks the worker what it shows.

import type { MemoryResult, OperationsResult } from "capstan-webgpu";
import type { Drawer } from "./drawer";
import { element, say, told } from "./elements";
import type { Engine } from "./engine";
import { chosenModel } from "./models";
import type { Running } from "./running";
import { readSettings } from "./settings";

export class Inside {
  readonly dialog = element("drawer", HTMLDialogElement);
  private readonly ask = element("tape-ask", HTMLButtonElement);
  private drawer: Promise<Drawer> | null = null;

  constructor(
    private readonly engine: Engine,
    private readonly running: Running,
  ) {
    element("drawer-open", HTMLButtonElement).addEventListener("click", () => void this.open());
    this.ask.addEventListener("click", () => void this.lookAtTape());
  }

  private load(): Promise<Drawer> {
    return (this.drawer ??= import("./drawer.js").then(
      ({ Drawer }) => new Drawer(),
      (error: unknown) => {
        this.drawer = null;
        throw error;
      },
    ));
  }

  private async open(): Promise<void> {
    this.dialog.showModal();
    this.ask.disabled = this.running.chat.busy;
    await this.telling(async () => {
      const drawer = await this.load();
      drawer.showBursts(this.running.last.bursts, this.running.last.device);
      if (this.running.chat.busy) say("memory-note", "A run is under way; open this again when it has ended.");
      else drawer.showMemory(await this.engine.ask<MemoryResult>({ kind: "memory" }));
    });
  }

  /** Makes a tape of the chosen model, or looks at the existing one. */
  private async lookAtTape(): Promise<void> {
    if (!this.running.hold(true)) return;
    this.ask.disabled = true;
    await this.telling(async () => {
      const { folder } = chosenModel();
      const { dtype, device, capture, run_ahead } = readSettings();
      const drawer = await this.load();
      say("tape-note", "Recording a decode step, and timing its operations");
      // It may be another model than the one of the last run.
      this.engine.forgetLoaded();
      const asked = { kind: "operations", model: folder, dtype, device, capture, run_ahead } as const;
      drawer.showOperations(await this.engine.ask<OperationsResult>(asked));
      drawer.showMemory(await this.engine.ask<MemoryResult>({ kind: "memory" }));
    });
    this.ask.disabled = false;
    this.running.hold(false);
  }

  /** Do something, and tell in the drawer what of it failed. */
  private async telling(action: () => Promise<void>): Promise<void> {
    say("drawer-note", "");
    try {
      await action();
    } catch (error) {
      say("drawer-note", told(error));
      say("tape-note", "");
    }
  }
}
