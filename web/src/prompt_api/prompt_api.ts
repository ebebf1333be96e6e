/**
 * `capstan-webgpu/prompt-api`: `LanguageModel` of the Prompt API (webmachinelearning/prompt-api) for browsers that have
 * none. A page that imports this module has it as a global, too. docs/prompt_api.md describes what differs.
 *
 * @module prompt-api
 */

import type { ChatOptions } from "capstan-webgpu";
import { asException, exception, refused } from "./prompt_errors";
import {
  dictionary,
  PARAMS,
  readConstraint,
  readCore,
  readMessages,
  readPrompt,
  signalIn,
  withText,
} from "./prompt_input";
import type { Core, Sampling } from "./prompt_input";
import { PromptSession } from "./prompt_session";
import type {
  AppendOptions,
  Availability,
  CoreOptions,
  CreateOptions,
  Monitor,
  Params,
  PromptInput,
  PromptOptions,
  SamplingMode,
} from "./prompt_types";
import { type InstallOptions, SharedModel } from "./shared_model";
import { handled, ProgressMonitor } from "./prompt_events";

export type { InstallOptions } from "./shared_model";

/** Lets the module be imported without a page, such as by a server that renders pages. */
const inPage = "document" in globalThis;
let shared = new SharedModel({});

/** The parts of a session that is being made. */
interface Parts {
  model: SharedModel;
  session: PromptSession;
  core: Core;
}
let parts: Parts | null = null;

function end({ model, session }: Pick<Parts, "model" | "session">): void {
  session.close();
  model.release();
}

/** Sessions that a page has lost without `destroy`. */
const forgotten = new FinalizationRegistry<Parts>(end);

/** A session with the page's model; see docs/prompt_api.md. */
export class LanguageModel extends EventTarget {
  readonly #model: SharedModel;
  readonly #session: PromptSession;
  readonly #core: Core;
  readonly #ending = new AbortController();
  readonly #handlers = handled(this);

  constructor() {
    super();
    if (!parts) throw new TypeError("Illegal constructor: await LanguageModel.create()");
    ({ model: this.#model, session: this.#session, core: this.#core } = parts);
    parts = null;
    const weak = new WeakRef(this);
    this.#session.overflowed = () => {
      for (const name of ["contextoverflow", "quotaoverflow"]) weak.deref()?.dispatchEvent(new Event(name));
    };
  }

  /**
   * Load the model, unless a session has it, and begin a session. Rejects with a DOMException: NotSupportedError for
   * inputs or outputs that the model does not have, QuotaExceededError for initial prompts that do not fit,
   * NetworkError, OperationError; with TypeError, RangeError, or the signal's reason.
   */
  static async create(options: CreateOptions = {}): Promise<LanguageModel> {
    const given = dictionary<CreateOptions>("the options", options);
    const signal = AbortSignal.any(signalIn(given));
    signal.throwIfAborted();
    const core = readCore(given);
    const model = shared;
    const missing = unsupported(core, model);
    const initial =
      given.initialPrompts === undefined ? null : readMessages("initialPrompts", given.initialPrompts, core.inputs);
    initial?.catch(() => undefined);
    const monitor = new ProgressMonitor();
    if (given.monitor !== undefined) {
      if (typeof given.monitor !== "function") throw new TypeError("monitor must be a function");
      given.monitor(monitor satisfies Monitor);
    }
    if (missing) throw exception("NotSupportedError", missing);
    const prompt = initial && (await initial);
    const show = (fraction: number): void => monitor.show(fraction);
    try {
      model.listeners.add(show);
      const using = model.use();
      show(0);
      const llm = await untilAborted(signal, using);
      model.listeners.delete(show);
      if (!llm.stats().canChat)
        throw exception("NotSupportedError", "the model has no chat template; install one that is trained for chats");
      const { runOptions } = model.given;
      const setting = { llm, options: { ...runOptions, ...searchOf(core.sampling) }, tools: core.tools };
      show(1);
      const session = await PromptSession.begin(setting, prompt, signal);
      // Listeners that see the end of the load may still abort.
      await new Promise((resolve) => setTimeout(resolve));
      if (signal.aborted) session.close();
      signal.throwIfAborted();
      const made = LanguageModel.#make({ model, session, core });
      signal.addEventListener("abort", () => made.#end(signal.reason), { once: true });
      return made;
    } catch (error) {
      model.listeners.delete(show);
      model.release();
      throw asException(error, "OperationError");
    }
  }

  /** Whether `create` would succeed, and whether it would load something first. Rejects with TypeError, RangeError. */
  static async availability(options: CoreOptions = {}): Promise<Availability> {
    const core = readCore(dictionary<CoreOptions>("the options", options));
    return unsupported(core, shared) ? "unavailable" : shared.availability();
  }

  /** The limits of `topK` and `temperature`, and their values where a session gives one of the two. */
  static async params(): Promise<Params> {
    return { ...PARAMS };
  }

  static #make(given: Parts): LanguageModel {
    parts = given;
    const made = new LanguageModel();
    forgotten.register(made, given, made.#ending);
    return made;
  }

  /** Answer a prompt. A prompt waits for those before it; one that fails or is aborted leaves nothing in the session. */
  async prompt(input: PromptInput, options: PromptOptions = {}): Promise<string> {
    const { signal, constraint } = this.#asked(options);
    return untilAborted(
      signal,
      this.#session.ask(this.#read(input), constraint, signal, () => undefined),
    );
  }

  /** The answer to a prompt, as it comes. */
  promptStreaming(input: PromptInput, options: PromptOptions = {}): ReadableStream<string> {
    const { signal, constraint } = this.#asked(options);
    const leaving = new AbortController();
    const whole = AbortSignal.any([signal, leaving.signal]);
    return new ReadableStream<string>({
      start: (controller) => {
        const answer = this.#session.ask(this.#read(input), constraint, whole, (text) => controller.enqueue(text));
        untilAborted(signal, answer).then(
          () => controller.close(),
          (error: unknown) => controller.error(error),
        );
      },
      cancel: (reason) => leaving.abort(reason),
    });
  }

  /** Add messages to the session, and run the model on them, so that the next prompt waits for less. */
  async append(input: PromptInput, options: AppendOptions = {}): Promise<undefined> {
    const signal = this.#signal(dictionary<AppendOptions>("the options", options));
    await untilAborted(signal, this.#session.append(this.#read(input), signal));
  }

  /** The tokens that a prompt would take by itself. */
  async measureContextUsage(input: PromptInput, options: PromptOptions = {}): Promise<number> {
    const { signal, constraint } = this.#asked(options);
    const count = async (): Promise<number> => {
      const { messages, continues } = await this.#read(input);
      return this.#session.count(withText(messages, constraint?.text ?? ""), continues);
    };
    return untilAborted(signal, count());
  }

  /** The old name of measureContextUsage. */
  async measureInputUsage(input: PromptInput, options: PromptOptions = {}): Promise<number> {
    return this.measureContextUsage(input, options);
  }

  /** The tokens of the session. */
  get contextUsage(): number {
    return this.#session.usage;
  }

  /** The old name of contextUsage. */
  get inputUsage(): number {
    return this.#session.usage;
  }

  /** The tokens that a session may have, with those of an answer. */
  get contextWindow(): number {
    return this.#session.window;
  }

  /** The old name of contextWindow. */
  get inputQuota(): number {
    return this.#session.window;
  }

  /** Hears when the oldest turns are left out. */
  get oncontextoverflow(): ((event: Event) => any) | null {
    return this.#handlers.get("contextoverflow");
  }

  set oncontextoverflow(handler: ((event: Event) => any) | null) {
    this.#handlers.set("contextoverflow", handler);
  }

  /** The old name of oncontextoverflow. */
  get onquotaoverflow(): ((event: Event) => any) | null {
    return this.#handlers.get("quotaoverflow");
  }

  set onquotaoverflow(handler: ((event: Event) => any) | null) {
    this.#handlers.set("quotaoverflow", handler);
  }

  /** The number of most probable tokens among which one is drawn. */
  get topK(): number {
    return this.#core.sampling.topK ?? this.#session.picking.topK;
  }

  get temperature(): number {
    return this.#core.sampling.temperature ?? this.#session.picking.temperature;
  }

  /** Null in a session with `topK` or `temperature`. */
  get samplingMode(): SamplingMode | null {
    return this.#core.sampling.mode;
  }

  /** Another session that goes on from here. */
  async clone(options: AppendOptions = {}): Promise<LanguageModel> {
    const signal = this.#signal(dictionary<AppendOptions>("the options", options));
    const session = await untilAborted(signal, this.#session.clone(signal));
    void this.#model.use();
    return LanguageModel.#make({ model: this.#model, session, core: this.#core });
  }

  /** End the session: what is under way rejects with an AbortError. */
  destroy(): undefined {
    this.#end(exception("AbortError", "the session was destroyed"));
  }

  #end(reason: unknown): void {
    if (this.#ending.signal.aborted) return;
    this.#ending.abort(reason);
    forgotten.unregister(this.#ending);
    end({ model: this.#model, session: this.#session });
  }

  #read(input: unknown): ReturnType<typeof readPrompt> {
    const reading = readPrompt(input, this.#core.inputs);
    reading.catch(() => undefined);
    return reading;
  }

  #asked(given: PromptOptions): { signal: AbortSignal; constraint: ReturnType<typeof readConstraint> } {
    const options = dictionary<PromptOptions>("the options", given);
    return { constraint: readConstraint(options), signal: this.#signal(options) };
  }

  /** The signal of a call; throws its reason if it is aborted. */
  #signal(options: Partial<AppendOptions>): AbortSignal {
    const signal = AbortSignal.any([this.#ending.signal, ...signalIn(options)]);
    signal.throwIfAborted();
    return signal;
  }
}

/** The reason why the model does not suit a session; empty if it suits. */
function unsupported({ inputs, outputs }: Core, { given }: SharedModel): string {
  const known = ["text", "tool-call", "tool-response"];
  const input = [...inputs].find((type) => ![...known, ...(given.inputs ?? [])].includes(type));
  const output = [...outputs].find((type) => !known.includes(type));
  if (output) return `expectedOutputs has the type "${output}"; the model writes text: leave it out`;
  if (input === "audio") return 'expectedInputs has the type "audio"; no model hears in a chat: leave it out';
  return input
    ? `expectedInputs has the type "${input}"; if the model sees, say so: install({ model, inputs: ["image"] })`
    : "";
}

function searchOf({ topK, temperature }: Sampling): ChatOptions {
  return { ...(temperature === undefined ? {} : { temperature }), ...(topK && temperature !== 0 ? { topK } : {}) };
}

/** The result of work; rejects with the signal's reason as soon as that aborts. */
function untilAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason as Error);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/**
 * Choose the model of the sessions that are created from now on. Returns whether the page's global LanguageModel is this
 * one: one that the browser has stays, unless `force` is true. Throws a CapstanError for other options.
 */
export function install(given: InstallOptions = {}): boolean {
  const { model, options, runOptions, inputs = [], force = false, unloadAfter = 0, ...others } = given;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) throw refused(`${unknown} is no option of install; leave it out`);
  if (![...inputs].every((type) => type === "image")) throw refused(`inputs is ${String(inputs)}; it may have "image"`);
  if (typeof force !== "boolean") throw refused(`force is ${String(force)}; it must be a boolean`);
  if (!(unloadAfter >= 0)) throw refused(`unloadAfter is ${String(unloadAfter)}; it must be milliseconds from 0`);
  shared.retire();
  shared = new SharedModel(given);
  const own = !("LanguageModel" in globalThis) || force;
  if (own && inPage) define();
  return (globalThis as { LanguageModel?: unknown }).LanguageModel === LanguageModel;
}

/** Make the class a global, like a browser's own. */
function define(): void {
  const place = { value: LanguageModel, writable: true, configurable: true, enumerable: false };
  Object.defineProperty(globalThis, "LanguageModel", place);
}

for (const [place, names] of [
  [LanguageModel, ["create", "availability", "params"]],
  [LanguageModel.prototype, Object.getOwnPropertyNames(LanguageModel.prototype)],
] as const)
  for (const name of names)
    if (name !== "constructor")
      Object.defineProperty(place, name, { ...Object.getOwnPropertyDescriptor(place, name), enumerable: true });
Object.defineProperty(LanguageModel.prototype, Symbol.toStringTag, { value: "LanguageModel", configurable: true });
if (inPage && !("LanguageModel" in globalThis)) define();
