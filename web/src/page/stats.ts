// How a model was loaded, how it decodes, and what was run.

import type { CapstanEvent, LoadResult, ModelFacts } from "../wire/protocol";
import type { Client } from "./client";
import type { RunResult } from "./run";

export type Ready = Extract<CapstanEvent, { kind: "ready" }>;

/** Runs that ended, and the tokens that they generated. */
export interface Sums {
  runs: number;
  tokens: number;
  restoredTokens: number;
  lastRun: RunResult | null;
}

/** How the model was loaded, how it decodes, and what was run. */
export interface Stats {
  model: ModelFacts;
  device: string;
  adapter: string;
  /** How decode steps run, and why not the way that was requested; null before the first run of a model without chats. */
  capture: string | null;
  captureNote: string | null;
  /** The result of each pass over the tape, or the reason why it changed nothing. */
  tapePasses: Record<string, string>;
  contextLength: number;
  /** The most tokens of a conversation, prompt and answer together: the option of the load, or the default. */
  maxLength: number;
  /** Whether the model has a chat template; without one `chat` rejects with ConfigError. */
  canChat: boolean;
  /** When each phase of the load began and ended, in milliseconds. */
  loadTimes: Record<string, [begin: number, end: number]>;
  /** Bytes of weights from Cross-Origin Storage. */
  crossOriginBytes: number;
  /** Milliseconds from the worker's start until Python was ready. */
  pythonMs: number;
  python: "snapshot" | "plain";
  /** Whether the worker is shared with other pages. If it was to be and is not, `sharedNote` has the reason. */
  shared: boolean;
  sharedNote: string | null;
  /** Runs that ended, and the tokens that they generated. */
  runs: number;
  tokens: number;
  /** Tokens of their prompts that came from the browser's storage, by the option `keep`. */
  restoredTokens: number;
  lastRun: RunResult | null;
}

/** The stats of a loaded model; `ready` describes its decoder once there is one. */
export function statsOf(client: Client, about: LoadResult, ready: Ready | null, sums: Sums): Stats {
  const { ready_ms: pythonMs, python } = client.readiness;
  const { model, device, adapter } = about;
  const {
    can_chat: canChat,
    context_length: contextLength,
    max_length: maxLength,
    load_times: loadTimes,
    cross_origin_bytes: crossOriginBytes,
  } = about;
  const { capture = null, capture_note: captureNote = null, tape_passes: tapePasses = {} } = ready ?? {};
  const decoding = { device, adapter, capture, captureNote, tapePasses };
  const { shared, note: sharedNote } = client.sharing;
  return {
    model,
    ...decoding,
    contextLength,
    maxLength,
    canChat,
    loadTimes,
    crossOriginBytes,
    pythonMs,
    python,
    shared,
    sharedNote,
    ...sums,
  };
}
