// A race: the same prompt and greedy picks, by each way of computing a decode step, in turn on this machine.

import { CapstanError, type CapstanEvent, type GenerateRequest, type Request } from "capstan-webgpu";
import { asFile, draw, inWords, type RaceResult } from "./card";
import { adapterInWords, hasWebgpu, lacksGpu, type Result } from "./diagnostics";
import { button, element, say, told } from "./elements";
import type { Engine } from "./engine";
import { Lane, type Runner } from "./lane";
import { type Chosen, chosenModel } from "./models";
import { readSettings } from "./settings";
import type { TransformersEvent, TransformersTask } from "./transformers_worker";

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
const TOKENS = 48;
/** With random or small models the first id that differs says more than the number of differing ids. */
const REFERENCE = 0;

export class Race {
  private readonly lanes = [...RUNNERS, TRANSFORMERS].map((runner) => new Lane(runner));
  private readonly startButton = button("Race", () => void this.start());
  private readonly stopButton = button("Stop the race", () => this.stop());
  private running = false;
  private stopped = false;
  /** Ends the worker of Transformers.js while it runs. */
  private endElsewhere: (() => void) | null = null;
  readonly dialog = element("race", HTMLDialogElement);
  private readonly picture = element("race-picture", HTMLCanvasElement);
  private result: RaceResult | null = null;
  /** The lanes of the result, and the frame of their replay. */
  private ran: Lane[] = [];
  private frame = 0;
  private prompt = "";

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
    for (const id of ["race-open", "race-hero"])
      element(id, HTMLButtonElement).addEventListener("click", () => {
        element("race-slow", HTMLElement).hidden = !lacksGpu() || !hasWebgpu();
        this.show(null);
        this.dialog.showModal();
      });
    this.dialog.addEventListener("close", () => {
      this.stop();
      cancelAnimationFrame(this.frame);
    });
    element("race-replay", HTMLButtonElement).addEventListener("click", () => this.replay());
    element("race-save", HTMLButtonElement).addEventListener("click", () => void this.save());
    element("race-share", HTMLButtonElement).addEventListener("click", () => void this.share());
  }

  /** Show those who can run this model, and return their lanes. */
  private show(model: Chosen | null): Lane[] {
    const offered = this.lanes.filter(({ runner }) => !runner.elsewhere || Boolean(model?.transformersJs?.length));
    const there = offered.filter(({ runner: { device } }) => device !== "webgpu" || hasWebgpu());
    const left = offered.filter((lane) => !there.includes(lane)).map(({ runner: { name } }) => name);
    say("race-left", left.length ? `Left out, as this browser offers no WebGPU: ${left.join(", ")}.` : "");
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
    cancelAnimationFrame(this.frame);
    this.showResult(null);
    this.prompt = element("race-prompt", HTMLInputElement).value;
    const finishes: (Finish | null)[] = [];
    try {
      const model = chosenModel();
      const lanes = this.show(model);
      for (const lane of lanes) {
        if (this.stopped) break;
        lane.element.ariaCurrent = "true";
        finishes.push(await (lane.runner.elsewhere ? this.runElsewhere(lane, model) : this.run(lane, model)));
        lane.element.ariaCurrent = null;
        this.compare(finishes);
      }
      say("race-note", this.stopped ? "Stopped." : this.verdict(lanes, finishes));
      this.ran = lanes;
      if (!this.stopped) this.showResult(this.resultOf(lanes, finishes, model.name));
    } catch (error) {
      say("race-note", this.stopped ? "Stopped." : `The race ended: ${(error as Error).message}`);
    } finally {
      this.running = false;
      for (const { element } of this.lanes) element.ariaCurrent = null;
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
    const task: TransformersTask = { library, model: folder as string, dtype, prompt: this.prompt, tokens: TOKENS };
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
      prompt: this.prompt,
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
  private verdict(lanes: readonly Lane[], finishes: (Finish | null)[]): string {
    const reference = finishes[REFERENCE];
    if (!reference) return `${lanes[REFERENCE]!.runner.name} could not run here.`;
    if (lanes.length === 1) return "No other can run here.";
    const differing = finishes.flatMap((finish, index) => {
      const at = finish ? firstDifference(finish, reference) : -1;
      return at < 0 ? [] : [`${lanes[index]!.runner.name} from token ${at + 1} on`];
    });
    const agree = differing.length ? `Ids differ: ${differing.join(", ")}.` : "All picked the same ids.";
    const times = timesOf(finishes);
    return times === null ? agree : `${agree} The tape is ${times.toFixed(1)} times as fast as the fastest other.`;
  }

  // The result.

  private resultOf(lanes: Lane[], finishes: (Finish | null)[], model: string): RaceResult | null {
    const reference = finishes[REFERENCE];
    if (!reference) return null;
    return {
      model,
      prompt: this.prompt,
      tokens: reference.ids.length,
      lanes: lanes.map(({ runner: { name } }, place) => ({ name, perSecond: finishes[place]?.perSecond ?? null })),
      times: timesOf(finishes),
      agree: finishes.every((finish) => !finish || firstDifference(finish, reference) < 0),
      adapter: adapterInWords(),
      date: new Date().toISOString().slice(0, 10),
    };
  }

  private showResult(result: RaceResult | null): void {
    this.result = result;
    const card = element("race-card", HTMLElement);
    card.hidden = !result;
    if (!result) return;
    draw(this.picture, result);
    this.picture.ariaLabel = inWords(result);
    const sample = new File([], "race.png", { type: "image/png" });
    element("race-share", HTMLButtonElement).hidden = !navigator.canShare?.({ files: [sample] });
    card.scrollIntoView({ block: "nearest" });
  }

  /** Show all texts grow at once, each at the pace that was measured. */
  private replay(): void {
    cancelAnimationFrame(this.frame);
    const begun = performance.now();
    const draw = (): void => {
      const seconds = (performance.now() - begun) / 1000;
      if (!this.ran.map((lane) => lane.showAt(seconds)).every(Boolean)) this.frame = requestAnimationFrame(draw);
    };
    draw();
    element("lanes", HTMLElement).scrollIntoView({ block: "start" });
  }

  private async save(): Promise<void> {
    const file = await asFile(this.picture, this.result!);
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: file.name });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  private async share(): Promise<void> {
    const file = await asFile(this.picture, this.result!);
    try {
      await navigator.share({ files: [file], title: "Capstan", text: inWords(this.result!) });
    } catch (error) {
      // The user may think better of it.
      if ((error as Error).name !== "AbortError") say("race-note", `It cannot be shared: ${(error as Error).message}`);
    }
  }
}

/** The place of the first id that differs, below 0 if there is none. */
function firstDifference({ ids }: Finish, reference: Finish): number {
  return ids.findIndex((id, index) => id !== reference.ids[index]);
}

/** How much faster the first was than the best of the others. */
function timesOf([reference, ...others]: (Finish | null)[]): number | null {
  const best = Math.max(0, ...others.map((finish) => finish?.perSecond ?? 0));
  return reference?.perSecond && best ? reference.perSecond / best : null;
}
