// Every message that crosses between the page and the worker, as tagged unions. The requests that Python answers are in
// requests.ts, which build.py writes from py_src/capstan/page/requests.py.

import type { Assets } from "./assets";
import type { CrossOriginAnswer, CrossOriginAsked } from "./cross_origin";
import type { AnswerPart, Message } from "./page_types";
import type { Picking } from "./search_options";
import type { AnsweredRequest, DeviceOptions, HubRepository } from "./requests";

export type { Picking } from "./search_options";
export type * from "./page_types";
export type * from "./requests";

export type Device = NonNullable<DeviceOptions["device"]>;

/** The requests of a page to the worker. */
export type Request = AnsweredRequest | CancelRequest;

/** The name, size and licence of a model, and how its tokens are picked for a request that does not say. */
export interface ModelFacts {
  /** The known model's name, else as the model's files have it, else that of the file or folder. */
  name: string;
  /** null where it is not known, as `bytes` and `licence`. */
  parameters: number | null;
  /** Bytes of graph and weights. */
  bytes: number | null;
  licence: string | null;
  /** All of this for people: "SmolLM2-135M-Instruct, 135 M parameters, 98 MB, Apache 2.0". */
  title: string;
  /** Search options by the names of capstan.SearchOptions. */
  search: Picking;
}

/** The result of a LoadRequest. */
export interface LoadResult {
  model: ModelFacts;
  device: string;
  adapter: string;
  context_length: number;
  /** The most tokens of a conversation. */
  max_length: number;
  /** Whether the model has a chat template. */
  can_chat: boolean;
  /** The token with which the model's texts begin; where it has none, the one that ends them. */
  begin_token_id: number;
  /** When each phase of the load began and ended, in milliseconds. */
  load_times: Record<string, [begin: number, end: number]>;
  /** Bytes of weights that were taken from Cross-Origin Storage since the worker's start. */
  cross_origin_bytes: number;
}

/** The result of a MemoryRequest. */
export interface MemoryResult {
  /** All of it. */
  bytes: number;
  /** Largest first; see capstan.memory.LedgerEntry. */
  entries: { device: string; category: string; owner: string; bytes: number; buffers: number }[];
}

/** The result of a PlanRequest; see capstan.plan. */
export interface PlanResult {
  device: string;
  fits: boolean;
  /** The value, the limit and the remedy; empty if it fits. */
  reason: string;
  /** Why the browser may end the page all the same, with the remedy; empty if nothing speaks for that. */
  tight: string;
  /** Tokens of the sequence that is planned for: those of a conversation, see ChatRequest. */
  max_length: number;
  context_length: number;
  /** The longest sequence that would fit. */
  largest_max_length: number | null;
  /** All of it; an estimate unless `exact`. */
  bytes: number;
  exact: boolean;
  /** The part of `bytes` for the draft model; 0 without one. */
  draft_bytes: number;
  /** Weights larger than a binding of the GPU adapter: the number of their parts, or 0 and why they stay whole. */
  split: { name: string; bytes: number; parts: number; why: string }[];
  pools: Record<"weights" | "persistent" | "io" | "scratch", number>;
}

/** The result of an OperationsRequest; see capstan.measure.operations. */
export interface OperationsResult {
  capture: string;
  capture_note: string | null;
  tape_passes: Record<string, string>;
  /** In the order of the step, the sampler's last; null if they are unknown, with the reason in `note`. */
  operations: { index: number; label: string; microseconds: number; bytes: number }[] | null;
  note: string | null;
}

/**
 * A submit of decode steps in milliseconds since the first token was requested: JavaScript began to encode it, submitted
 * it, the device had computed it, its ids had been copied, Python received them; then the number of steps.
 */
export type BurstTimes = [
  encoded: number,
  submitted: number,
  done: number,
  readable: number,
  entered: number,
  steps: number,
];

/** A token that could come next. */
export interface Alternative {
  token_id: number;
  text: string;
  /** By the logits of the model as they are, before the search options. */
  probability: number;
  /** Whether the text ends with it. */
  ends: boolean;
}

/** A stored session. The result of a SavedSessionsRequest is a list of them, the most recently used first. */
export interface SavedSession {
  id: string;
  /** The number of its messages. */
  messages: number;
  /** Tokens that are computed already, and the bytes of what was computed for them. */
  tokens: number;
  bytes: number;
  /** The bits of a number of what was computed: 8 or 4, or 0 for the numbers of the cache. */
  bits: number;
  /** When it was last saved or restored, in milliseconds since 1970. */
  used: number;
  /** Why nothing that was computed is stored; else empty. */
  reason: string;
}

/** The result of a SaveSessionRequest. */
export interface SaveResult extends SavedSession {
  /** The ids of sessions that lost what was computed for them, since all together would exceed the budget. */
  evicted: string[];
}

/** The result of a RestoreSessionRequest or an OpenSessionRequest. */
export interface RestoredSession {
  messages: Message[];
  /** Tokens that need not be computed again. */
  tokens: number;
  /** 8 or 4 if what was computed for them was stored in so few bits: answers may differ; else 0. */
  bits: number;
  /** Why there are none; else empty. */
  reason: string;
}

/** The result of a LoadEmbedderRequest. */
export interface LoadEmbedderResult {
  device: string;
  pooling: string;
  max_tokens: number;
}

/** The result of an EmbedRequest. */
export interface EmbedResult {
  /** Base64 of float32, one vector after the other. */
  vectors: string;
  dimensions: number;
  /** For each text, special tokens included. */
  tokens: number[];
}

/** The result of a LoadRerankerRequest. */
export interface LoadRerankerResult {
  device: string;
  max_tokens: number;
}

/** The result of a RerankRequest is a list of these for all documents, the best first. */
export interface RankedDocument {
  index: number;
  score: number;
}

/** The result of a LoadTranscriberRequest. */
export interface LoadTranscriberResult {
  device: string;
  /** Codes; none for a model of English only. */
  languages: string[];
}

/** A part of a sound's text, with its times in seconds; null without timestamps. */
export interface SpeechSegment {
  text: string;
  start: number | null;
  end: number | null;
}

/** The text of an utterance, so far or in full; its times in seconds from the first sample. */
export interface Caption {
  text: string;
  start: number;
  end: number;
  /** Whether the utterance has ended. Until then later captions take this one's place. */
  final: boolean;
}

/** The result of a TranscribeRequest; see capstan.Transcription. */
export interface TranscribeResult {
  text: string;
  /** Empty without timestamps. */
  segments: SpeechSegment[];
  language: string;
  duration: number;
  /** The segments as captions; null without timestamps. */
  vtt: string | null;
  /** False if it was cancelled. */
  ended: boolean;
}

/** The result of a LoadVoiceRequest. */
export interface LoadVoiceResult {
  device: string;
  /** Their names; none if the folder cannot be listed. */
  voices: string[];
  /** The one that speaks by default. */
  voice: string;
}

/** The result of a SpeakRequest. */
export interface SpeakResult {
  /** Base64 of float32, one channel at 24,000 Hz. */
  samples: string;
}

/** The result of a ScoreRequest. */
export interface ScoreResult {
  /** In the order of the request's. */
  sequences: ScoredTokens[];
  device: string;
  adapter: string;
  tape_passes: Record<string, string>;
  /** Tokens that the model was not run on, since the prefix cache had them. */
  reused_tokens: number;
}

/** The tokens of a sequence that were scored, by a softmax of the model's own logits. */
export interface ScoredTokens {
  /** The number of tokens before them. */
  context_tokens: number;
  token_ids: number[];
  /** Natural logarithms, one for each token. */
  log_probabilities: number[];
  /** Whether each token was the most probable one at its place. */
  greedy: boolean[];
  /** The texts that the tokens add, if the request wants them. */
  texts?: string[];
}

/** The result of a TokenizerRequest. */
export interface TokenizerResult {
  text: string;
  ids?: number[];
}

/** A token of an answer, the logarithm of its probability by the logits of the model as they are, and the most probable tokens. */
export interface LogProbability extends TokenLogProbability {
  top: TokenLogProbability[];
}

export interface TokenLogProbability {
  token_id: number;
  text: string;
  log_probability: number;
}

/** The result of a ModelsRequest. */
export interface ModelsResult {
  /** The kind of storage for weights; with `memory` they are kept only while a model is open. */
  store: "opfs" | "cache" | "memory";
  files: StoredFile[];
  /** The bytes that `evict` removed. */
  freed: number;
}

/** One stored weight file; see capstan.StoredWeights. */
export interface StoredFile {
  /** The content hash; null for a download that was interrupted. */
  content: string | null;
  sources: string[];
  size: number;
  stored_bytes: number;
  /** Shards that `verify` found damaged; the next load fetches them again. */
  suspect: number[];
}

/** The times of a worker in Chrome's trace format (JSON Object Format): saved to a file it opens in Perfetto. */
export interface Trace {
  traceEvents: TraceEvent[];
  displayTimeUnit: "ms";
  /** The adapter, the versions, `dropped_spans`, and in `no_gpu_times` the reason why the GPU's times are missing, or null. */
  otherData: Record<string, unknown>;
}

/** A span ("X") in microseconds since 1970, or the name of a track ("M"). */
export interface TraceEvent {
  name: string;
  ph: "X" | "M";
  pid: number;
  tid: number;
  ts?: number;
  dur?: number;
  cat?: string;
  args?: Record<string, unknown>;
}

/** Stop the request that is running; its own reply then says how it ended. */
export interface CancelRequest {
  kind: "cancel";
}

/** The worker's events during a request or the start. */
export type CapstanEvent =
  | { kind: "status"; text: string }
  | { kind: "progress"; what: string; done: number; total: number }
  /**
   * Bytes of the runtime and of weights that came, as their servers send them, and all that are known of; `whole` once these
   * are all of the load. Only where they were requested, see StartOptions.
   */
  | { kind: "bytes"; done: number; total: number; whole: boolean }
  | {
      kind: "ready";
      /** The title of ModelFacts. */
      model: string;
      device: string;
      adapter: string;
      capture: string;
      capture_note: string | null;
      /** The result of each pass over the tape, or the reason why it changed nothing; empty without a tape. */
      tape_passes: Record<string, string>;
    }
  /** The worker died, or was ended since a cancelled request did not end, and another one is being started. */
  | { kind: "restarted"; reason: string }
  /** A worker that pages share was requested, and this page has one of its own for this reason. */
  | { kind: "unshared"; reason: string }
  /**
   * The GPU device was lost, and the model was opened on another one in this number of milliseconds: its run goes on.
   */
  | { kind: "recovered"; reason: string; ms: number }
  /**
   * Between two requests: these shards of a stored file are not what was stored. The next load fetches them again, and
   * the next request that names a model loads it again.
   */
  | { kind: "damaged"; sources: string[]; shards: number; damaged: number[] }
  /**
   * Between two requests: what was computed for the conversation of this id (ChatRequest.keep) is stored. `evicted` are the
   * ids that lost theirs for it; `reason` says why nothing was stored, else it is empty.
   */
  | { kind: "kept"; id: string; tokens: number; bytes: number; evicted: string[]; reason: string }
  /** With `row` it is of one of several answers. A chat's has the parts of the answer that it makes certain. */
  | {
      kind: "text";
      text: string;
      token_id: number;
      log_probability?: LogProbability;
      row?: number;
      parts?: AnswerPart[];
    }
  | ({ kind: "segment" } & SpeechSegment)
  | ({ kind: "caption" } & Caption)
  /** The answer's token at a place, and the most probable tokens there. */
  | { kind: "alternatives"; place: number; token: Alternative; best: Alternative[] }
  | { kind: "stdout"; text: string }
  | { kind: "stderr"; text: string };

/** An error of the Python side, whole: class name, message, traceback. */
export interface RemoteError {
  type: string;
  message: string;
  traceback: string;
}

export type Reply = { ok: true; result: unknown } | { ok: false; error: RemoteError };

/** The model of the first request. */
export interface Expected {
  /** The address of the model folder, ending in a slash, or a hub's repository. */
  model: string | HubRepository;
  /** Which graph of a repository; null if that is not known yet. */
  dtype: string | null;
  device: Device;
}

/** The content of a picture's file; with a width and a height, pixels: red, green, blue and alpha. */
export interface PictureData {
  width: number | null;
  height: number | null;
  bytes: Uint8Array;
}

/** The sound of a TranscribeRequest or ListenRequest, or the pictures of messages by their numbers; they cross by transfer. */
export type Attached = Float32Array | PictureData[];

export type ToWorker =
  /** With `bytes` the answers before the last one are those of FromHelper. */
  | { tag: "warm up"; assets: Assets; bytes: boolean }
  /** See unpack_snapshot.ts. */
  | { tag: "unpack"; url: string; bytes: number; pieces: MessagePort }
  /** See cpu/cpu_threads.ts; answered by `true` when the thread is up. */
  | { tag: "compute"; module: WebAssembly.Module; memory: WebAssembly.Memory; thread: number; threads: number }
  /** See storage/hashing.ts. */
  | { tag: "hash"; shards: MessagePort }
  | {
      tag: "boot";
      assets: Assets;
      interrupt: SharedArrayBuffer | null;
      /** The lock of a page that shares the worker, and what it asks for; null for a worker of the page's own. */
      shared: { tab: string; device: Device } | null;
      snapshot: boolean;
      expected: Expected | null;
      /** The lock to hold as long as the worker lives; null where there are no locks. */
      life: string | null;
      /** Milliseconds without a request until stored weights are compared with their digests. */
      verifyAfter: number;
      /** Take a trace, from the worker's start on. */
      trace: boolean;
      /** Count the bytes of the load. */
      bytes: boolean;
      /** Look for files in Cross-Origin Storage; `page` if the page has it. */
      crossOrigin: { page: boolean } | null;
    }
  /** `stops` is the request that a cancel is for, if there is one. */
  | { tag: "request"; id: number; request: Request; stops: number | null; attached: Attached | null }
  /** A line that a script asked for, null at the end of the input. */
  | { tag: "input"; line: string | null }
  | ({ tag: "cross-origin" } & CrossOriginAnswer);

/** The bytes of onnxruntime-web's files that a worker beside ours fetches. */
export type FromHelper = { url: string; done: number } | { url: string; sent: number; packed: boolean };

/** How Python came up. */
export interface Readiness {
  /** Milliseconds from the worker's start to its being ready for requests. */
  ready_ms: number;
  /** From the memory snapshot, or from nothing. */
  python: "snapshot" | "plain";
}

export type FromWorker =
  /** The worker holds its lock. */
  | { tag: "alive" }
  /** A worker that pages share leaves this one to a worker of its own. */
  | { tag: "unsuited"; reason: string }
  /** Python or onnxruntime-web ended by an error after which it cannot be used. */
  | { tag: "fatal"; reason: string }
  /** The worker has answered the request that it was at, and begins no other. */
  | { tag: "spent"; reason: string }
  | ({ tag: "booted"; id: 0 } & Readiness)
  | { tag: "event"; id: number; event: CapstanEvent }
  /** A script waits for a line of its input. */
  | { tag: "input" }
  | ({ tag: "cross-origin" } & CrossOriginAsked)
  | { tag: "reply"; id: number; reply: Reply };
