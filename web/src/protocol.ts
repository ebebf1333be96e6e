// Every message that crosses between the page and the worker, as tagged unions.

import type { Assets } from "./assets";

/** The requests of a page to the worker. */
export type Request =
  | LoadRequest
  | GenerateRequest
  | ChatRequest
  | ExecRequest
  | ModelsRequest
  | MemoryRequest
  | PlanRequest
  | AlternativesRequest
  | OperationsRequest
  | EndSessionRequest
  | TraceRequest
  | CancelRequest;

/** A model folder: a URL ending in a slash, what the user picked, a folder or the files of one, or a hub's repository. */
export type ModelFolder = string | FileSystemDirectoryHandle | File[] | HubRepository;

/** A repository of a hub; see capstan.HubRepository. */
export interface HubRepository {
  /** Its id, as OWNER/NAME. */
  repository: string;
  /** The hub's address. */
  hub: string;
  /** A branch, a tag or a commit; null is the branch main. */
  revision: string | null;
  token: string | null;
}

/** The model of a request and its device. */
interface ModelRequest {
  model: ModelFolder;
  /** Which graph of a repository in Transformers.js layout; null takes one that suits the device. */
  dtype: string | null;
  device: "webgpu" | "wasm" | "auto";
  /** How decode steps run on WebGPU; null is as the model's configuration says, else "tape". */
  capture: "tape" | "ort" | "off" | null;
  /** Decode steps in one submit; null adapts it to the measured round trip. */
  run_ahead: number | null;
  max_new_tokens: number | null;
  /** Search options by the names of capstan.SearchOptions, which are onnxruntime-genai's where it has them; only those given. */
  search: Record<string, unknown>;
  /** Seconds without a byte after which a request for a file is given up, to be tried again; left out or null: as before, 30 at first. */
  stall_timeout?: number | null;
  /** The grammar that the output has to fit, as GeneratorParams.set_guidance takes it; left out or null for none. */
  guidance?: Guidance | null;
  /** Draft tokens and verify several in one step, as capstan.Speculation takes it; left out or null for none. */
  speculation?: { ngram_size?: number; max_draft_tokens?: number } | null;
  /** The address of a LoRA adapter file to run the model with; left out or null for none. */
  adapter?: string | null;
  /** The name of a function that a script defined by capstan.logits_processor or capstan.shortlist_processor. */
  logits_processor?: string | null;
  /** How often the run may have its GPU device lost and go on, on another one; left out or null for the default. */
  recoveries?: number | null;
  /** Tell in the result when each burst of tokens came, as `bursts`: BurstTimes[]; left out or null for false. */
  timeline?: boolean | null;
  /** Bytes of the device for what prompts begin with, as Model.load takes it; left out or null for none. */
  prefix_cache?: number | null;
  /** Leave the browser's storage of weights out, as Model.load takes it; left out or null for false. */
  disable_file_mapped_weights?: boolean | null;
}

/** `data` is the text of a grammar of this type; docs/guidance.md says what may be in it. */
export interface Guidance {
  type: "json_schema" | "regex" | "lark_grammar" | "ebnf";
  data: string;
  /** Append text that must come next without a model step for each of its tokens. */
  enable_ff_tokens?: boolean;
}

/** Load a model, and make the decode step of its chats ready if it has a chat template. */
export interface LoadRequest extends ModelRequest {
  kind: "load";
  /** As in ChatRequest. */
  max_length: number | null;
}

/** The result of a LoadRequest. */
export interface LoadResult {
  device: string;
  adapter: string;
  context_length: number;
  /** Whether the model has a chat template. */
  can_chat: boolean;
  /** When each phase of the load began and ended, in milliseconds. */
  load_times: Record<string, [begin: number, end: number]>;
}

/** Tell what memory is live. */
export interface MemoryRequest {
  kind: "memory";
}

/** The result of a MemoryRequest. */
export interface MemoryResult {
  /** All of it. */
  bytes: number;
  /** Largest first; see capstan.memory.LedgerEntry. */
  entries: { device: string; category: string; owner: string; bytes: number; buffers: number }[];
}

/** Tell whether a model would fit, before its weights are read. */
export interface PlanRequest {
  kind: "plan";
  model: ModelFolder;
  /** As in ModelRequest. */
  dtype: string | null;
  device: ModelRequest["device"];
}

/** The result of a PlanRequest; see capstan.plan. */
export interface PlanResult {
  device: string;
  fits: boolean;
  /** The value, the limit and the remedy; empty if it fits. */
  reason: string;
  /** Tokens of the sequence that is planned for: those of a conversation, see ChatRequest. */
  max_length: number;
  context_length: number;
  /** The longest sequence that would fit. */
  largest_max_length: number | null;
  /** All of it; an estimate unless `exact`. */
  bytes: number;
  exact: boolean;
  pools: Record<"weights" | "persistent" | "io" | "scratch", number>;
}

/**
 * Tell of each token of an answer how probable it was and what else could have come, by `alternatives` events: the model is
 * run over them. The model and the prompt or the messages are those of the request that was answered.
 */
export interface AlternativesRequest extends ModelRequest {
  kind: "alternatives";
  prompt: string | null;
  /** A conversation's in place of a prompt, up to what was answered; left out for a prompt. */
  messages?: Message[];
  /** As in ChatRequest. */
  max_length: number | null;
  /** The ids of the answer's tokens. */
  answer: number[];
  /** So many of the most probable tokens are told for each. */
  count: number;
}

/** Describe the operations of the model's decode step. */
export interface OperationsRequest extends Omit<ModelRequest, "max_new_tokens" | "search"> {
  kind: "operations";
}

/** The result of an OperationsRequest; see capstan.measure.operations. */
export interface OperationsResult {
  capture: string;
  capture_note: string | null;
  tape_passes: Record<string, string>;
  /** In the order of the step, the sampler's last; null where they cannot be told, for the reason in `note`. */
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

/** Complete a prompt with a model; tokens arrive as `text` events, the summary as the reply. */
export interface GenerateRequest extends ModelRequest {
  kind: "generate";
  prompt: string | null;
  prompt_ids: number[] | null;
  /** The first tokens of the completion, which goes on from there and is told without them; they count as new ones. */
  begun?: number[] | null;
}

/** A message of a conversation, as the model's chat template takes it. */
export interface Message {
  role: string;
  content: string;
  /** Others that the template knows: tool_calls, tool_call_id, name. */
  [field: string]: unknown;
}

/**
 * Answer the last message of a conversation by the model's chat template; tokens arrive as `text` events, the summary as
 * the reply, also after `cancel`. The worker keeps what it computed for the last conversation: a request whose messages
 * go on from there runs the model on what is new only. Without messages the model is loaded and made ready.
 */
export interface ChatRequest extends ModelRequest {
  kind: "chat";
  messages: Message[];
  /** As in GenerateRequest, of the answer. */
  begun?: number[] | null;
  /** The tools that the model may call, in the template's form; left out or null for none. */
  tools?: object[] | null;
  /** Tokens of the whole conversation; null is 4096, or the model's context if that is shorter. */
  max_length: number | null;
  /**
   * The computed caches are kept for each session until EndSessionRequest; left out or null for requests without a
   * session.
   */
  session?: string | null;
}

/** Give back what a session holds. */
export interface EndSessionRequest {
  kind: "end_session";
  session: string;
}

/** Run a Python script; its output arrives as `stdout` and `stderr` events, its exit status as the reply. */
export interface ExecRequest {
  kind: "exec";
  source: string;
  filename: string;
  argv: string[];
  /** Model folders by name. */
  models: Record<string, ModelFolder>;
  /**
   * Files that the script finds in Python's file system: URLs by path, a relative one below its current folder. Each is
   * read when it is opened. A folder of them that is a model's may be loaded by its path.
   */
  files: Record<string, string>;
}

/** Tell what weights this origin stores, after removing or verifying some: by content hash or URL; null means all. */
export interface ModelsRequest {
  kind: "models";
  action: "list" | "evict" | "verify";
  which: string | null;
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

/** Take a trace from now on, or end it: the result is a Trace then. */
export interface TraceRequest {
  kind: "trace";
  action: "start" | "stop";
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
  | {
      kind: "ready";
      device: string;
      adapter: string;
      capture: string;
      capture_note: string | null;
      /** The result of each pass over the tape, or the reason why it changed nothing; empty without a tape. */
      tape_passes: Record<string, string>;
    }
  /** The worker died, or was ended since a cancelled request did not end, and another one is being started. */
  | { kind: "restarted"; reason: string }
  /** The GPU device was lost, and the model was opened on another one in so many milliseconds: its run goes on. */
  | { kind: "recovered"; reason: string; ms: number }
  /**
   * Between two requests: these shards of a stored file are not what was stored. The next load fetches them again, and
   * the next request that names a model loads it anew.
   */
  | { kind: "damaged"; sources: string[]; shards: number; damaged: number[] }
  | { kind: "text"; text: string; token_id: number }
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
  device: "webgpu" | "wasm" | "auto";
}

export type ToWorker =
  | { tag: "warm up"; assets: Assets }
  | {
      tag: "boot";
      assets: Assets;
      interrupt: SharedArrayBuffer | null;
      snapshot: boolean;
      expected: Expected | null;
      /** The lock to hold as long as the worker lives; null where there are no locks. */
      life: string | null;
      /** Milliseconds without a request until stored weights are compared with their digests. */
      verifyAfter: number;
      /** Take a trace, from the worker's start on. */
      trace: boolean;
    }
  /** `stops` is the request that a cancel is for, if there is one. */
  | { tag: "request"; id: number; request: Request; stops: number | null }
  /** A line that a script asked for, null at the end of the input. */
  | { tag: "input"; line: string | null };

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
  /** Python or onnxruntime-web ended by an error after which it cannot be used. */
  | { tag: "fatal"; reason: string }
  | ({ tag: "booted"; id: 0 } & Readiness)
  | { tag: "event"; id: number; event: CapstanEvent }
  /** A script waits for a line of its input. */
  | { tag: "input" }
  | { tag: "reply"; id: number; reply: Reply };
