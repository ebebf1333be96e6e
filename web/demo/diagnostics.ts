// This machine and how the steps of a run are computed: adapter, device, capture, pace and counters.

import type { BurstTimes, CapstanEvent, RunResult } from "capstan-webgpu";
import { type AdapterSummary, requestAdapter, summarize, UNNAMED } from "../src/wire/adapter";
import { button, element, milliseconds, say, tableRow, UNKNOWN } from "./elements";
import { needsGpu } from "./models";
import { text } from "./settings";

type Ready = Extract<CapstanEvent, { kind: "ready" }>;

/** The answer to a finished generate request; that to a chat request is the same without `counters`. */
export interface Result {
  token_ids: number[];
  finish_reason: string;
  device: string;
  adapter: string;
  capture: string;
  capture_note: string | null;
  tape_passes: Record<string, string>;
  tokens_per_second: number | null;
  time_to_first_token_ms: number | null;
  counters?: Record<string, number>;
  bursts?: BurstTimes[];
  prompt_tokens?: number;
  /** See RunResult of the library. */
  restored?: RunResult["restored"];
}

/** The pace of the run that is under way as this page sees it, until the worker's own numbers arrive. */
export interface Pace {
  generating: number;
  first: number;
  last: number;
  tokens: number;
}

const COUNTERS: Record<string, string> = {
  steps: "decode steps",
  submits: "queue submits",
  readbacks: "readbacks",
  readback_bytes: "bytes read back",
  create_buffer: "buffers created",
  create_bind_group: "bind groups created",
  write_buffer: "buffer writes",
  python_crossings: "entries into Python",
};

let adapter: AdapterSummary | null = null;
/** As the browser tells it. */
let adapterName = UNKNOWN;

export async function findAdapter(): Promise<void> {
  try {
    const found = await requestAdapter();
    adapter = found && summarize(found);
  } catch {
    adapter = null;
  }
  if (adapter) {
    const { vendor, architecture, description } = adapter;
    adapterName = [vendor, architecture, description].filter(Boolean).join(" ");
    if (description === UNNAMED) adapterName = nameByWebGL() || UNNAMED;
    say("adapter", adapterInWords());
  } else {
    say("adapter", "none: this browser offers no WebGPU adapter");
  }
  // Without WebGPU only one way to compute is left.
  element("race-hero", HTMLButtonElement).hidden = !adapter;
  forecast();
}

/**
 * The GPU's name by WebGL: Firefox leaves the names of WebGPU's adapters empty. With two GPUs it may be the other one.
 */
function nameByWebGL(): string {
  const gl = document.createElement("canvas").getContext("webgl");
  if (!gl) return "";
  const unmasked = gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL;
  const name = String(gl.getParameter(unmasked ?? gl.RENDERER) ?? "");
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return name && `${name}, by WebGL's name`;
}

/** The adapter in words, as far as the browser tells. */
export function adapterInWords(): string {
  return adapter ? `${adapterName} (${sort()})` : "no WebGPU adapter";
}

/** Whether this browser offers WebGPU, also by software. */
export function hasWebgpu(): boolean {
  return adapter !== null;
}

/** Whether the CPU does the work of a GPU, or there is none. */
export function lacksGpu(): boolean {
  return adapter?.software ?? true;
}

/** Whether WebGPU is chosen while the CPU does a GPU's work. */
export function runsWithoutGpu(): boolean {
  return lacksGpu() && element("device", HTMLElement).textContent === "webgpu";
}

function sort(): string {
  return adapter?.software ? "software" : "hardware";
}

/** The button beside the text of a trouble. */
const REMEDIES = {
  cpu: () =>
    button("Compute on the CPU", () => {
      const choice = element("device-choice", HTMLSelectElement);
      choice.value = "auto";
      choice.dispatchEvent(new Event("change", { bubbles: true }));
    }),
  model: () => button("Choose another model", () => element("models-open", HTMLButtonElement).click()),
};

/**
 * Show which device the choice means on this machine; `auto` depends on the GPU adapter (capstan.Model). Returns the
 * trouble with it in a few words, none if there is none.
 */
export function forecast(): string {
  const notice = element("notice", HTMLParagraphElement);
  const wanted = text("device");
  let chosen = wanted;
  let why = "";
  let warning = "";
  let trouble = "";
  let remedy: keyof typeof REMEDIES = "cpu";
  if (wanted === "auto") {
    chosen = lacksGpu() ? "wasm" : "webgpu";
    why = adapter ? `auto: the WebGPU adapter is ${sort()}` : "auto: there is no WebGPU here";
  } else if (wanted === "wasm") why = "chosen; the CPU, without a GPU";
  if (chosen === "webgpu" && !adapter) {
    trouble = "no WebGPU here";
    warning = "This browser offers no WebGPU.";
  } else if (chosen === "webgpu" && adapter?.software) {
    trouble = "no GPU, so slow";
    warning = "WebGPU is software here: the CPU does the GPU's work, and a chat model's first answer takes minutes.";
  } else if (chosen === "wasm" && needsGpu()) {
    trouble = "this model needs a GPU";
    warning = "This model needs a GPU: on the CPU there is room for 800 million parameters.";
    remedy = "model";
  }
  notice.hidden = !warning;
  notice.replaceChildren(...(warning ? [warning, " ", REMEDIES[remedy]()] : []));
  say("device", chosen);
  say("device-note", why);
  return trouble;
}

/** Before a run: nothing is known of it yet. */
export function clearFigures(): void {
  say("capture-note", "");
  for (const id of ["speed", "first", "tokens", "finish", "capture"]) say(id, UNKNOWN);
  showFigures(false);
  forecast();
}

/** Shows the requested capture mode until the mode in use is known. */
export function showAsked(capture: string): void {
  say("capture", capture);
  say("capture-note", "asked for; what is used is told once the decode step is prepared");
}

/** Clears the capture mode: nothing was prepared. */
export function showNothingPrepared(): void {
  say("capture", UNKNOWN);
  say("capture-note", "");
}

/** How the decode steps of a run are computed. */
export function showHow(how: Ready | Result): void {
  say("device", how.device);
  if (how.device === "webgpu") say("adapter", adapterInWords());
  say("capture", how.capture);
  say("capture-note", how.capture_note ?? leftOut(how.tape_passes));
}

/**
 * The part of the decode step that fused kernels do not compute because a check failed, with the reason; empty if there
 * is none.
 */
function leftOut({ fused, "left out": left }: Record<string, string>): string {
  if (left) return `in part as recorded: ${left}`;
  return fused?.startsWith("not used") ? `fused kernels are ${fused}` : "";
}

function showFigures(on: boolean): void {
  element("figures", HTMLElement).classList.toggle("none", !on);
}

/** Note the pace as this page sees it, for a run that is stopped; a finished run shows Python's numbers instead. */
export function notePace({ generating, first, last, tokens }: Pace): void {
  say("tokens", String(tokens));
  if (tokens === 1) say("first", milliseconds(first - generating));
  if (tokens > 1 && last > first) say("speed", ((1000 * (tokens - 1)) / (last - first)).toFixed(1));
}

/** Whether a run ended at a limit of tokens. */
export function limited({ finish_reason: reason }: Result): boolean {
  return reason === "length";
}

/** A finished run, and the same in a line. */
export function showFinished(result: Result): string {
  const { token_ids, tokens_per_second, time_to_first_token_ms, counters, prompt_tokens, restored } = result;
  const atLimit = limited(result);
  const speed = tokens_per_second === null ? UNKNOWN : tokens_per_second.toFixed(1);
  const first = time_to_first_token_ms === null ? UNKNOWN : milliseconds(time_to_first_token_ms);
  showFigures(true);
  say("tokens", String(token_ids.length));
  say("speed", speed);
  say("first", first);
  say("finish", atLimit ? "the limit" : result.finish_reason);
  showHow(result);
  if (counters) showCounters(counters);
  const paced = tokens_per_second === null ? "" : `, ${speed} a second`;
  const kept = restored?.tokens
    ? `; of ${prompt_tokens?.toLocaleString()} before them ${restored.tokens.toLocaleString()} were kept`
    : "";
  return `${token_ids.length} tokens${paced}${atLimit ? ", stopped at the limit" : ""}${kept}`;
}

function showCounters(counters: Record<string, number>): void {
  const steps = counters["steps"] ?? 0;
  const rows = Object.entries(COUNTERS).map(([name, label]) => {
    const total = counters[name] ?? 0;
    return tableRow([label], String(total), steps > 0 ? String(Number((total / steps).toFixed(2))) : UNKNOWN);
  });
  element("counter-rows", HTMLTableSectionElement).replaceChildren(...rows);
}

export function showStopped(tokens: number): void {
  showFigures(tokens > 0);
  say("tokens", String(tokens));
  say("finish", "stop");
}
