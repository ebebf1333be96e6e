// A race: the same prompt and greedy picks, by each way of computing a decode step, in turn on this machine.

import { CapstanError, type CapstanEvent, type GenerateRequest, type Request } from "capstan-webgpu";
import type { Result } from "./diagnostics";
import { button, element, made, say, told } from "./elements";
import type { Engine } from "./engine";
import { type Chosen, chosenModel } from "./models";
import { readSettings } from "./settings";
import type { TransformersEvent, TransformersTask } from "./transformers_worker";

/** One who runs: a device and how its decode steps are computed. */
interface Runner {
  name: string;
  device: "webgpu" | "wasm";
  capture: "tape" | "ort" | "off";
  /** Not Capstan at all; see transformers_worker.ts. */
  elsewhere?: true;
}

/** The result of one lane. */
interface Finish {
  ids: number[];
  perSecond: number | null;
  /** How the steps were really computed. */
  capture: string;
}

const RUNNERS: Runner[] = [
  { name: "Capstan's tape", device: "webgpu", capture: "tape" },
  { name: "onnxruntime-web's capture", device: "webgpu", capture: "ort" },
  { name: "onnxruntime-web, step by step", device: "webgpu", capture: "off" },
  { name: "the CPU (WebAssembly)", device: "wasm", capture: "off" },
];
/** Runs where the site has it and the model is in its layout. */
const TRANSFORMERS: Runner = { name: "Transformers.js", device: "webgpu", capture: "off", elsewhere: true };
const PROMPT = "def fibonacci(n):";
const TOKENS = 48;
/** With random or small models the first id that differs says more than the number of differing ids. */
const REFERENCE = 0;

class Lane {
  readonly element = made("li", "lane");
  private readonly text = made("p", "lane-text");
  private readonly note = made("p", "help");
  private readonly pace = made("strong", "lane-pace");
  private readonly bar = document.createElement("meter");

  constructor(readonly runner: Runner) {
    const head = made("div", "lane-head");
    head.append(made("span", "", runner.name), this.pace);
    this.bar.min = 0;
    this.bar.setAttribute("aria-label", `Tokens per second of ${runner.name}`);
    this.element.append(head, this.bar, this.text, this.note);
    this.clear();
  }

  clear(): void {
    this.pace.textContent = "–";
    this.text.textContent = "";
    this.note.textContent = "";
    this.bar.value = 0;
  }

  append(part: string): void {
    this.text.append(part);
  }

  show(text: string): void {
    this.text.textContent = text;
  }

  tell(note: string): void {
    this.note.textContent = note;
  }

  showPace(perSecond: number, fastest: number): void {
    this.pace.textContent = `${perSecond.toFixed(1)} tokens/s`;
    this.bar.max = fastest;
    this.bar.value = perSecond;
  }
}

export class Race {
  private readonly lanes = [...RUNNERS, TRANSFORMERS].map((runner) => new Lane(runner));
  private readonly startButton = button("Race", () => void this.start());
  private readonly stopButton = button("Stop the race", () => this.stop());
  private running = false;
  private stopped = false;
  /** Ends the worker of Transformers.js while it runs. */
  private endElsewhere: (() => void) | null = null;

  constructor(
    private readonly engine: Engine,
    /** Take the worker, if it is free, and give it back. */
    private readonly hold: (on: boolean) => boolean,
  ) {
    this.startButton.id = "race-start";
    this.stopButton.id = "race-stop";
    this.stopButton.disabled = true;
    element("race-buttons", HTMLElement).append(this.startButton, this.stopButton);
    this.show(null);
  }

  /** Show those who can run this model, and return their lanes. */
  private show(model: Chosen | null): Lane[] {
    const there = this.lanes.filter(({ runner }) => !runner.elsewhere || Boolean(model?.transformersJs?.length));
    element("lanes", HTMLElement).replaceChildren(...there.map((lane) => lane.element));
    return there;
  }

  private async start(): Promise<void> {
    if (this.running || !this.hold(true)) return;
    this.running = true;
    this.stopped = false;
    this.stopButton.disabled = false;
    this.startButton.disabled = true;
    for (const lane of this.lanes) lane.clear();
    const finishes: (Finish | null)[] = [];
    try {
      const model = chosenModel();
      for (const lane of this.show(model)) {
        if (this.stopped) break;
        finishes.push(await (lane.runner.elsewhere ? this.runElsewhere(lane, model) : this.run(lane, model)));
        this.compare(finishes);
      }
      say("race-note", this.stopped ? "Stopped." : this.verdict(finishes));
    } catch (error) {
      say("race-note", this.stopped ? "Stopped." : `The race ended: ${(error as Error).message}`);
    } finally {
      this.running = false;
      this.stopButton.disabled = true;
      this.startButton.disabled = false;
      this.hold(false);
    }
  }

  stop(): void {
    if (!this.running) return;
    this.stopped = true;
    this.engine.cancel();
    this.endElsewhere?.();
  }

  /** Run Transformers.js in a worker of its own, over the same text; null if it cannot run here. */
  private async runElsewhere(lane: Lane, { folder, transformersJs: dtypes = [] }: Chosen): Promise<Finish | null> {
    const { dtype: asked } = readSettings();
    const dtype = asked ?? (dtypes.length === 1 ? dtypes[0]! : "");
    if (!dtypes.includes(dtype)) {
      lane.tell(`Choose a dtype, so that all run the same graph: there are ${dtypes.join(", ")}.`);
      return null;
    }
    const library = new URL("./transformers.js/", document.baseURI).href;
    const task: TransformersTask = { library, model: folder as string, dtype, prompt: PROMPT, tokens: TOKENS };
    const worker = new Worker(new URL("./transformers_worker.js", document.baseURI), { type: "module" });
    try {
      return await new Promise<Finish | null>((resolve) => {
        const fail = (message: string): void => {
          lane.tell(`Cannot run here. ${message}`);
          resolve(null);
        };
        this.endElsewhere = () => resolve(null);
        worker.addEventListener("error", ({ message }) => fail(message || "its worker did not start"));
        worker.addEventListener("message", ({ data }: MessageEvent<TransformersEvent>) => {
          if (data.kind === "status")
            say("race-note", `${data.text === "running" ? "Running" : "Preparing"}: ${lane.runner.name}`);
          if (data.kind === "text") lane.show(data.text);
          if (data.kind === "error") fail(data.message);
          if (data.kind === "end") resolve({ ids: data.ids, perSecond: data.perSecond, capture: "off" });
        });
        worker.postMessage(task);
      });
    } finally {
      this.endElsewhere = null;
      worker.terminate();
    }
  }

  /** Run one; null if it cannot run here, which its lane then says. */
  private async run(lane: Lane, model: Chosen): Promise<Finish | null> {
    const { device, capture } = lane.runner;
    const ask = <T>(request: Request, onEvent: (event: CapstanEvent) => void): Promise<T> =>
      this.engine.ask<T>(request, onEvent);
    const settings = { dtype: readSettings().dtype, device, capture, run_ahead: null, search: { do_sample: false } };
    const request = (max_new_tokens: number): GenerateRequest => ({
      kind: "generate",
      ...settings,
      model: model.folder,
      max_new_tokens,
      prompt: PROMPT,
      prompt_ids: null,
    });
    this.engine.forgetLoaded();
    try {
      say("race-note", `Preparing: ${lane.runner.name}`);
      // Kernels are made and the tape is recorded before anything is timed.
      await ask(request(4), (event) => {
        if (event.kind === "progress") say("race-note", `Preparing: ${lane.runner.name}: loading ${event.what}`);
        if (event.kind === "status") say("race-note", `Preparing: ${lane.runner.name}: ${event.text}`);
      });
      say("race-note", `Running: ${lane.runner.name}`);
      const result = await ask<Result>(request(TOKENS), (event) => {
        if (event.kind === "text") lane.append(event.text);
      });
      const other = result.capture === capture ? "" : `Computed by ${result.capture}: ${result.capture_note ?? ""}`;
      lane.tell(other);
      return { ids: result.token_ids, perSecond: result.tokens_per_second, capture: result.capture };
    } catch (error) {
      if (this.stopped || !(error instanceof CapstanError)) throw error;
      lane.tell(`Cannot run here. ${told(error)}`);
      return null;
    }
  }

  /** Draw the paces to one scale. */
  private compare(finishes: (Finish | null)[]): void {
    const paces = finishes.map((finish) => finish?.perSecond ?? 0);
    const fastest = Math.max(...paces);
    paces.forEach((pace, index) => pace && this.lanes[index]!.showPace(pace, fastest));
  }

  /** Whether all picked the same ids, and how much faster the first was than the best of the others. */
  private verdict(finishes: (Finish | null)[]): string {
    const reference = finishes[REFERENCE];
    if (!reference) return "The tape could not run here.";
    const others = finishes
      .slice(1)
      .flatMap((finish, index) => (finish ? [{ finish, name: this.lanes[index + 1]!.runner.name }] : []));
    const differing = others.flatMap(({ finish, name }) => {
      const at = finish.ids.findIndex((id, index) => id !== reference.ids[index]);
      return at < 0 ? [] : [`${name} from token ${at + 1} on`];
    });
    const agree = differing.length ? `Ids differ: ${differing.join(", ")}.` : "All picked the same ids.";
    const best = Math.max(...others.map(({ finish }) => finish.perSecond ?? 0));
    if (!reference.perSecond || !best) return agree;
    return `${agree} The tape is ${(reference.perSecond / best).toFixed(1)} times as fast as the fastest other.`;
  }
}
