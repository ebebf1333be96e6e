/**
 * A language model in a page: `Capstan.load`, then `chat`.
 *
 * @module capstan
 */

import { Client, type StartOptions } from "./client";
import { Completions } from "./completions";
import { Embedder, type EmbedderOptions } from "./embedder";
import { Reranker, type RerankerOptions } from "./reranker";
import { asCapstanError, refused } from "../wire/errors";
import { flag, type Kinds, millisecondsAboveZero, read, shown, text } from "./kinds";
import { ask, loadInWorker, pageAddress, WORKER_KINDS, type WorkerOptions } from "./load_in_worker";
import {
  address,
  chatRequest,
  completeRequest,
  draftFolder,
  loadRequest,
  messageList,
  modelFolder,
  MODEL_KINDS,
} from "./options";
import { tokenizerRequest } from "./options";
import type { ChatOptions, ModelOptions, RunOptions } from "./options";
import { fits, type Fit, type FitOptions, models, type Models } from "./stored_models";
import type {
  CapstanEvent,
  ChatRequest,
  GenerateRequest,
  HubRepository,
  LoadResult,
  MemoryResult,
  Message,
  ModelFolder,
  Request,
  RestoredSession,
  SaveResult,
  SaveSessionRequest,
  ScoreResult,
  TokenizerResult,
  Trace,
} from "../wire/protocol";
import { reading, readOptions } from "./arguments";
import { type PythonResult, PythonScripts } from "./python_scripts";
import { Run, Turns } from "./run";
import { type Scored, scoredText, type ScoreOptions, scoring } from "./score";
import { nextName, requireId, Session } from "./chat_session";
import { savedSessions, type SavedSessions } from "./saved_sessions";
import { sharedName } from "./sharing";
import { Microphone, type MicrophoneOptions } from "./microphone";
import { type Ready, type Stats, statsOf, type Sums } from "./stats";
import { takePictures } from "./pictures";
import { Tokenizer } from "./model_tokenizer";
import { Transcriber, type TranscriberOptions } from "./transcriber";
import { Voice, type VoiceOptions } from "./voice";

export * from "./client";
export { Embedder, type EmbedderOptions } from "./embedder";
export type { Embedding, EmbeddingParams, EmbeddingResponse } from "./embedder";
export { Reranker, type RerankerOptions } from "./reranker";
export type { RerankOptions, RerankResult } from "./reranker";
export { CapstanError, type CapstanErrorCode } from "../wire/errors";
export type { WorkerOptions } from "./load_in_worker";
export type {
  Completion,
  CompletionChunk,
  CompletionLogprobs,
  CompletionOptions,
  Completions,
  CompletionStream,
  CompletionToken,
  CompletionUsage,
  FinishReason,
} from "./completions";
export type { CompletionMessage, CompletionParams, CompletionTool } from "./completion_params";
export type { ChatOptions, ModelOptions, RunOptions } from "./options";
export type { AnswerPart, ContentPart, Picture, ToolCall } from "../wire/protocol";
export {
  type LikelyToken,
  Run,
  type RunChoice,
  type RunEnd,
  type RunPart,
  type RunResult,
  type TokenLogprob,
} from "./run";
export type { PythonResult } from "./python_scripts";
export type { Stats } from "./stats";
export type { Scored, ScoredToken, ScoreOptions } from "./score";
export { type SaveOptions, Session } from "./chat_session";
export type { SavedSession, SaveResult } from "../wire/protocol";
export type { SavedSessions } from "./saved_sessions";
export type { KnownModel } from "./known_models";
export type { Fit, FitOptions, Models, StoredModel, StoredOptions } from "./stored_models";
export { Tokenizer } from "./model_tokenizer";
export type { TemplateOptions } from "./run_options";
export type { LoadProgress } from "./progress";
export { Microphone, type MicrophoneOptions } from "./microphone";
export { Transcriber, type TranscriberOptions } from "./transcriber";
export type { ListenOptions } from "./live_captions";
export { type TranscribeOptions, type Transcription, TranscriptionRun } from "./transcription_run";
export type { TranscriptionParams, TranscriptionResponse, Transcriptions } from "./transcriptions";
export type { TranscriptionStreamEvent } from "./transcriptions";
export type { Sound } from "./sound_samples";
export type { Caption, SpeechSegment } from "../wire/protocol";
export { type Phonemize, type SpeakOptions, Voice, type VoiceOptions } from "./voice";
export type { SpeechParams, Speeches } from "./speeches";
export type { SpokenText } from "./sentences";

export interface LoadOptions extends ModelOptions, WorkerOptions {
  /** Milliseconds that an aborted run has to end, 10 seconds unless given; then its worker is replaced. See Client.start. */
  cancelDeadline?: number;
  /** Take a trace, from the worker's start on; see Capstan.trace. */
  trace?: boolean;
  /**
   * Share the worker and the model with other pages of the origin that load the same with the same options. If a
   * SharedWorker has no WebGPU, this page has a worker of its own: `stats().sharedNote` and an event `unshared` say why.
   */
  shared?: boolean;
}

const LOAD_KINDS: Kinds = {
  ...{ ...MODEL_KINDS, ...WORKER_KINDS, cancelDeadline: millisecondsAboveZero, trace: flag, shared: flag },
};

/** See Capstan.chat. */
export interface Chat {
  (messages: readonly Message[], options?: ChatOptions): Run;
  readonly completions: Completions;
}

/** See Capstan.trace. */
export interface Tracing {
  (): Promise<Trace>;
  /** Begin a trace, after the runs that were requested before. Rejects with OptionError if one is being taken. */
  start(): Promise<void>;
}

/** One model in one worker. Runs wait for one another, in the order of their calls. */
export class Capstan {
  private readonly turns = new Turns();
  private readonly scripts: PythonScripts;
  private readonly sums: Sums = { runs: 0, tokens: 0, restoredTokens: 0, lastRun: null };

  private constructor(
    private readonly client: Client,
    private readonly folder: ModelFolder,
    private readonly options: ModelOptions,
    private readonly about: LoadResult,
    private readonly readyNow: () => Ready | null,
  ) {
    const chat = (messages: readonly Message[], given: ChatOptions = {}): Run =>
      this.run(chatRequest(this.folder, this.options, messages, given), given);
    this.scripts = new PythonScripts(client, folder, (...asked) => this.inTurn(...asked));
    this.chat = Object.assign(chat, { completions: new Completions(chat) });
    this.tokenizer = new Tokenizer(
      async (action, given) =>
        (await this.inTurn(tokenizerRequest(this.folder, this.options, action, given))) as TokenizerResult,
    );
    const traced = (action: "start" | "stop"): Promise<unknown> => this.inTurn({ kind: "trace", action });
    this.trace = Object.assign(async () => (await traced("stop")) as Trace, {
      start: async () => void (await traced("start")),
    });
  }

  /**
   * Load a model: the URL of a folder or a GGUF file, a hub's id, or what the user picked. Rejects with a CapstanError,
   * whose `code` is the kind of failure and whose message has the remedy, or with the reason of `signal`.
   */
  static async load(model: ModelFolder, given: LoadOptions = {}): Promise<Capstan> {
    const options = readOptions("the options", given, LOAD_KINDS);
    options.signal?.throwIfAborted();
    const folder = reading("the model", () => modelFolder(model, options, pageAddress()));
    if (options.draftModel !== undefined) options.draftModel = draftFolder(options, pageAddress());
    const { cancelDeadline, trace } = options;
    const shared = await sharedName(folder, options);
    const start: StartOptions = {
      ...(cancelDeadline === undefined ? {} : { cancelDeadline }),
      ...(trace === undefined ? {} : { trace }),
      ...(shared === null ? {} : { shared: { name: shared, device: options.device ?? "auto" } }),
      // The worker would begin with weights that are stored.
      ...(expectable(folder) && !options.disableFileMappedWeights ? { expected: expectedOf(folder, options) } : {}),
    };
    let ready: Ready | null = null;
    const { client, about } = await loadInWorker(
      options,
      start,
      () => loadRequest(folder, options),
      (event) => {
        if (event.kind === "ready") ready = event;
      },
    );
    return new Capstan(client, folder, options, about as LoadResult, () => ready);
  }

  /**
   * Load an encoder of texts (BERT, MiniLM, MPNet, bge, e5, gte and their like, as ONNX) for embeddings: the URL of a folder
   * in the layout of Transformers.js or sentence-transformers, a hub's id, or what the user picked. Rejects as `load`.
   */
  static loadEmbedder(model: ModelFolder, options: EmbedderOptions = {}): Promise<Embedder> {
    return Embedder.load(model, options);
  }

  /**
   * Load a reranker as ONNX (ms-marco-MiniLM, bge-reranker, jina-reranker, gte-reranker-modernbert, Qwen3-Reranker and
   * their like), which ranks documents by a query: the URL of a folder in the layout of Transformers.js, a hub's id, or what
   * the user picked. Rejects as `load`.
   */
  static loadReranker(model: ModelFolder, options: RerankerOptions = {}): Promise<Reranker> {
    return Reranker.load(model, options);
  }

  /**
   * Load a speech model (Whisper, as onnxruntime-genai's builder writes it): the URL of a folder, a hub's id, or what the
   * user picked. Rejects as `load`.
   */
  static loadTranscriber(model: ModelFolder, options: TranscriberOptions = {}): Promise<Transcriber> {
    return Transcriber.load(model, options);
  }

  /**
   * Load a model that speaks (Kokoro, in the layout of onnx-community/Kokoro-82M-v1.0-ONNX): the URL of a folder, a hub's id,
   * or what the user picked. Rejects as `load`.
   */
  static loadVoice(model: ModelFolder, options: VoiceOptions = {}): Promise<Voice> {
    return Voice.load(model, options);
  }

  /** Ask for a microphone, whose samples a transcriber takes. Rejects with a SoundError if it is refused or missing. */
  static microphone(options: MicrophoneOptions = {}): Promise<Microphone> {
    return Microphone.open(options);
  }

  /** The models that are known to fit; `list`, `size`, `delete` and `verify` are about those that this origin keeps. */
  static readonly models: Models = models;

  /**
   * Whether a model fits this machine, by its configuration and graph: before its weights are read. It takes the model
   * as `load` does; rejects with a CapstanError as that.
   */
  static fits(model: ModelFolder, options: FitOptions = {}): Promise<Fit> {
    return fits(model, options);
  }

  /** Text to token ids and back, and the prompts of conversations. */
  readonly tokenizer: Tokenizer;

  /**
   * `chat(messages, options)` answers the last message of a conversation by the model's chat template. Send all messages
   * each time: what was computed for the conversation before is kept, and the model runs on what is new, also where an
   * earlier message was edited. `chat.completions.create` does it with OpenAI's parameters and results.
   */
  readonly chat: Chat;

  /** Continue a text, or token ids. */
  complete(prompt: string | readonly number[], options: RunOptions = {}): Run {
    return this.run(completeRequest(this.folder, this.options, prompt, options), options);
  }

  /** How probable a text is after a context, by the model's own logits: the model is run over both, as over a prompt. */
  async score(text: string, options: ScoreOptions = {}): Promise<Scored> {
    return scoredText((await this.inTurn(scoring(this.folder, this.options, text, options))) as ScoreResult);
  }

  /** A conversation that keeps its messages, and what was computed for them, from turn to turn. */
  session(messages: readonly Message[] = []): Session {
    return this.begun(reading("messages", () => read("messages", messages, messageList) as Message[]));
  }

  /**
   * Continue a session that `session.save(id)` stored, in this page or an earlier one; null if there is none of that id.
   * If what was computed cannot be used (it is damaged or was removed, or this is another model or adapter), `restored`
   * has the reason, and the messages are computed again with the first answer. Rejects with StorageError if the messages
   * are damaged.
   */
  async restore(id: string): Promise<Session | null> {
    requireId(id);
    const session = nextName();
    const { messages: _, ...request } = chatRequest(this.folder, this.options, [], {});
    const asked = { ...request, kind: "restore_session", id, session } as const;
    const found = (await this.inTurn(asked)) as RestoredSession | null;
    if (!found) return null;
    const { messages, ...restored } = found;
    return this.begun(messages, session, restored);
  }

  /**
   * A session of these messages, the first of which were computed before: a system prompt with tools, say, whose state
   * `generator.save_state()` of Python wrote to a file at this URL. If the state cannot be used (it is damaged, or of
   * another model), `restored` has the reason, and the messages are computed with the first answer. `options` are those of
   * the answers to come, except `maxTokens`. Rejects with OptionError for a URL that a page cannot read.
   */
  async sessionFrom(url: string, messages: readonly Message[], options: ChatOptions = {}): Promise<Session> {
    const session = nextName();
    const request = chatRequest(this.folder, this.options, messages, options);
    const place = address(read("the state", url, text) as string, "the state", pageAddress());
    const asked = { ...request, kind: "open_session", url: place, session } as const;
    const { messages: _, ...restored } = (await this.inTurn(asked)) as RestoredSession;
    return this.begun(messages, session, restored);
  }

  /** The saved sessions of this origin, the most recently used first, and their removal. */
  readonly sessions: SavedSessions = savedSessions((request) => this.inTurn(request));

  private begun(messages: readonly Message[], name?: string, restored?: Session["restored"]): Session {
    const answer = (asked: readonly Message[], given: ChatOptions, session: string): Run => {
      const request = chatRequest(this.folder, this.options, asked, given);
      const { num_return_sequences: count = 1 } = request.search ?? {};
      if (count !== 1) throw refused(`n is ${shown(count)}; a session goes on from one answer: leave it out`);
      return this.run({ ...request, session }, given);
    };
    const end = async (session: string): Promise<void> => void (await this.inTurn({ kind: "end_session", session }));
    const save = async (request: SaveSessionRequest): Promise<SaveResult> => (await this.inTurn(request)) as SaveResult;
    return new Session(answer, end, save, messages, name, restored);
  }

  /**
   * Run Python code in the worker, in its turn; top-level await is allowed and `capstan` can be imported. If pages share the
   * model's worker, scripts run in another one, of this page's own: one that never ends keeps no other page waiting.
   */
  async python(code: string, argv: readonly string[] = []): Promise<PythonResult> {
    return this.scripts.run(code, argv);
  }

  /**
   * `trace()` ends the trace that `load` began with the option `trace`, or `trace.start()`, after the runs that were asked
   * for before, and resolves to it. Rejects with OptionError if none is being taken.
   */
  readonly trace: Tracing;

  /** Live memory of the GPU and of Python's sessions, by purpose. */
  async memory(): Promise<MemoryResult> {
    return (await this.inTurn({ kind: "memory" })) as MemoryResult;
  }

  /** How the model was loaded and what was run. */
  stats(): Stats {
    return statsOf(this.client, this.about, this.readyNow(), this.sums);
  }

  /**
   * End the worker and give its memory back; runs under way reject with ClosedError. A shared worker ends once the last
   * page has left it.
   */
  close(): void {
    this.client.close();
    this.scripts.close();
  }

  private run(asked: ChatRequest | GenerateRequest, { signal }: RunOptions): Run {
    const { pictures, ...taken } =
      asked.kind === "chat" ? reading("messages", () => takePictures(asked.messages)) : { pictures: [] };
    const request = { ...asked, ...taken };
    if (request.logits_processor != null && this.client.sharing.shared)
      throw refused(
        `logitsProcessor is ${shown(request.logits_processor)}, but a worker that pages share runs no page's script; ` +
          "load the model without shared",
      );
    if (request.kind === "chat" && request.messages.length === 0)
      throw refused("messages is an empty list; give at least one message to answer");
    const run = new Run(this.client, this.turns, request, signal, pictures);
    void run.result.then(
      (result) => {
        this.sums.runs++;
        for (const { tokenIds } of result.choices) this.sums.tokens += tokenIds.length;
        this.sums.restoredTokens += result.restored?.tokens ?? 0;
        this.sums.lastRun = result;
      },
      () => undefined,
    );
    return run;
  }

  private async inTurn(
    request: Request,
    onEvent?: (event: CapstanEvent, id: number) => void,
    client: () => Promise<Client> = async () => this.client,
  ): Promise<unknown> {
    const turn = this.turns.take();
    await turn.begun;
    try {
      return await ask(await client(), request, onEvent);
    } catch (error) {
      throw asCapstanError(error);
    } finally {
      turn.end();
    }
  }
}

/** Whether the worker can begin with a model while Python starts; picked files are there anyway. */
function expectable(folder: ModelFolder): folder is string | HubRepository {
  return typeof folder === "string" || "repository" in folder;
}

function expectedOf(model: string | HubRepository, { dtype, device }: ModelOptions): StartOptions["expected"] & {} {
  return { model, ...(dtype === undefined ? {} : { dtype }), ...(device === undefined ? {} : { device }) };
}
