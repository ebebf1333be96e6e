// The answers of <capstan-chat> by this page's worker: run the model, stop, look at tokens, continue from one.

import {
  type AlternativesRequest,
  type BurstTimes,
  CapstanError,
  type CapstanEvent,
  type ChatRequest,
  type GenerateRequest,
  type LoadRequest,
  type LoadResult,
  type Request,
} from "capstan-webgpu";
import { CapstanChat, type ChatTurn } from "../src/chat/chat";
import { takePictures } from "../src/page/pictures";
import { LoadMeter, type LoadProgress, loadStatus } from "../src/page/progress";
import type { PictureData } from "../src/wire/protocol";
import * as diagnostics from "./diagnostics";
import { button, clause, element, milliseconds } from "./elements";
import type { Engine } from "./engine";
import { type Chosen, chosenKey, chosenModel, learn } from "./models";
import { FormError, pointOutNothing, readProcessor, readSettings, systemText } from "./settings";
import { type Token, TokenView } from "./tokens";

/** The data that are stored with a turn, to continue its answer. */
interface TurnData {
  /** The key of the model, which alone reads the ids. */
  model: string;
  tokens: Token[];
  /** Whether the answer was stopped, broken off, or ended at a limit. */
  unfinished: boolean;
}

/** The model of an answer, and what it said. */
interface Answered {
  model: Chosen;
  tokens: Token[];
  /** The request that produced it, once there is one. */
  request: ChatRequest | GenerateRequest | null;
  view: TokenView | null;
  looking: HTMLButtonElement;
}

/** An answer that is under way. */
interface Run extends diagnostics.Pace {
  turn: ChatTurn;
  answered: Answered;
  phase: "starting" | "loading" | "running";
}

/** Milliseconds after the last key until a changed processor is used by the answer that streams. */
const TYPED_MS = 700;
/** A step that takes longer is told with its seconds, so often. */
const STEP_MS = 10_000;
/** The tokens of a text that a model without a chat template continues: it may never end one. */
const COMPLETION_TOKENS = 128;
const NO_FILES = "this model continues a text, and takes no files; remove them, or choose a chat model";
/** The number of alternatives that are shown for each token. */
const ALTERNATIVES = 8;

export class Running {
  readonly chat = element("chat", CapstanChat);
  /** The bursts of the last run that finished, and its device. */
  last = { bursts: [] as BurstTimes[], device: "" };
  private readonly answered = new WeakMap<ChatTurn, Answered>();
  private current: Run | null = null;
  /** The beginning of the next answer, in ids of its model. `uncounted` of its tokens do not count for the limit. */
  private begun: { model: Chosen; tokens: Token[]; uncounted: number } | null = null;
  /** Has the last answer continued. */
  private readonly more = button("Continue", () => void this.resume(false));
  private release = (): void => {};
  /** Measures the load that is under way, or the start. */
  private meter = new LoadMeter();
  /** Ticks while a step is under way. */
  private clock: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly engine: Engine,
    /** Resolves when the form has the site's models and the settings of the page's address. */
    private readonly filled: Promise<void>,
    /** The name under which what is computed for the shown conversation is kept; null for none. */
    private readonly keepAs: () => string | null,
  ) {
    this.chat.answer = (turn, signal) => this.answer(turn, signal);
    this.chat.addEventListener("capstan-clear", () => diagnostics.clearFigures());
    for (const change of ["capstan-turns", "capstan-busy"] as const)
      this.chat.addEventListener(change, () => this.offerMore());
    let typed: ReturnType<typeof setTimeout> | undefined;
    element("processor", HTMLTextAreaElement).addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => void this.useProcessor(), TYPED_MS);
    });
  }

  /** Keep the worker free of runs, or let them come again; false if one is under way. */
  hold(on: boolean): boolean {
    if (!on) this.release();
    else if (this.chat.busy) return false;
    else void this.chat.occupy(() => new Promise((resolve) => (this.release = resolve)));
    return true;
  }

  /** Offer to continue the last answer, if it is unfinished and the chosen model began it. */
  offerMore(): void {
    this.more.remove();
    const turn = this.chat.turns.at(-1);
    const { model, tokens, unfinished } = (turn?.data ?? {}) as Partial<TurnData>;
    if (!turn || this.chat.busy || !unfinished || !tokens?.length || model !== chosenKey()) return;
    turn.bring("actions", this.more);
  }

  /** Have the last answer continued, in its own turn; `counted` if its tokens so far count for the limit. */
  private resume(counted: boolean): Promise<void> {
    const turn = this.chat.turns.at(-1)!;
    const { tokens } = turn.data as TurnData;
    this.begun = { model: chosenModel(), tokens: [...tokens], uncounted: counted ? 0 : tokens.length };
    // A stopped answer shows a text whose token had not been told.
    turn.answer = textOf(tokens);
    const resumed = this.chat.resume(turn);
    this.begun = null;
    return resumed;
  }

  private async answer(turn: ChatTurn, signal: AbortSignal): Promise<string> {
    const { engine, chat, begun } = this;
    pointOutNothing();
    diagnostics.clearFigures();
    await this.filled;
    signal.throwIfAborted();
    const model = begun?.model ?? chosenModel();
    const settings = readSettings();
    const system = systemText();
    const processor = readProcessor();
    const before = this.answered.get(turn);
    if (before) lookAway(before);
    before?.looking.remove();
    const looking = button("Tokens", () => void this.look(turn));
    looking.setAttribute("aria-pressed", "false");
    const answered: Answered = { model, tokens: begun?.tokens ?? [], request: null, view: null, looking };
    this.answered.set(turn, answered);
    const data: TurnData = { model: model.key, tokens: answered.tokens, unfinished: true };
    turn.data = data;
    turn.bring("actions", looking);
    turn.continues = !model.chat;
    const run: Run = { turn, answered, phase: "starting", generating: 0, first: 0, last: 0, tokens: 0 };
    this.current = run;
    signal.addEventListener("abort", () => this.stopped(run), { once: true });
    diagnostics.showAsked(settings.capture);
    const ask = <T>(request: Request, pictures: PictureData[] = []): Promise<T> =>
      engine.ask<T>(request, (event) => this.show(event, run), signal, pictures);
    try {
      chat.showStatus("Starting Python");
      await engine.start(signal);
      if (processor) {
        await engine.define(processor.source, "processor.py", signal);
        settings.logits_processor = processor.name;
      }
      run.phase = "loading";
      const load: LoadRequest = { kind: "load", ...settings, model: model.folder, max_length: null };
      const about = await engine.load(keyOf(model, settings), () => ask<LoadResult>(load));
      learn(model, about.model);
      this.meter = new LoadMeter();
      run.phase = "running";
      turn.continues = !about.can_chat;
      if (turn.continues && turn.attached.length) throw new CapstanError({ type: "PromptError", message: NO_FILES });
      const said = [...(system ? [{ role: "system", content: system }] : []), ...chat.messages];
      const { messages, pictures } = takePictures(said);
      const request: ChatRequest | GenerateRequest = about.can_chat
        ? { ...load, kind: "chat", messages }
        : { kind: "generate", ...settings, model: model.folder, prompt: turn.asked, prompt_ids: null };
      if (!about.can_chat) request.max_new_tokens ??= COMPLETION_TOKENS;
      answered.request = { ...request };
      if (answered.tokens.length) request.begun = answered.tokens.map(({ id }) => id);
      if (request.max_new_tokens && begun) request.max_new_tokens += begun.uncounted;
      request.timeline = true;
      if (request.kind === "chat") request.keep = this.keepAs();
      run.generating = performance.now();
      if (about.can_chat) this.showStep("Reading");
      // Alternatives are asked of texts alone.
      looking.hidden = pictures.length > 0;
      const read = await Promise.all(pictures.map((picture) => picture(signal)));
      const result = await ask<diagnostics.Result>(request, read);
      turn.note = diagnostics.showFinished(result);
      data.unfinished = diagnostics.limited(result);
      this.last = { bursts: result.bursts ?? [], device: result.device };
      const unusable = result.restored?.reason;
      chat.showStatus(unusable ? `Done; all of it was computed again: ${clause(unusable)}` : "Done");
      return result.finish_reason;
    } catch (error) {
      if (!signal.aborted) diagnostics.showNothingPrepared();
      throw error;
    } finally {
      clearInterval(this.clock);
      this.current = null;
    }
  }

  /** An answer was stopped: what came so far stays, and later events of the worker are not shown. */
  private stopped({ turn, phase, tokens }: Run): void {
    clearInterval(this.clock);
    diagnostics.showStopped(tokens);
    turn.note = tokens ? `${tokens} tokens, stopped` : "stopped";
    if (phase === "running") {
      this.chat.showStatus("Stopped; the figures are this page's own");
      this.engine.cancel();
    } else {
      this.chat.showStatus("Stopped; what was downloaded is kept, and the next run goes on from there");
      // A download goes on beneath a request that is cancelled; with its worker it ends.
      if (phase === "loading") this.engine.end();
      void this.engine.start().catch(() => undefined);
    }
  }

  /** Show an answer token by token and ask what the model says of each, or show it as a text again. */
  private async look(turn: ChatTurn): Promise<void> {
    const { chat, engine } = this;
    const answered = this.answered.get(turn)!;
    const { request, model, tokens } = answered;
    if (answered.view) return lookAway(answered);
    if (chat.busy || !request || !tokens.length) return;
    chat.showError(null);
    pointOutNothing();
    const view = (answered.view = new TokenView(tokens, (place, instead) => this.goOn(turn, place, instead)));
    turn.bring("answer", view.element);
    turn.bring("below", view.panel);
    answered.looking.setAttribute("aria-pressed", "true");
    await chat.occupy(async (signal) => {
      signal.addEventListener("abort", () => {
        chat.showStatus("Stopped looking");
        engine.cancel();
      });
      const ask = <T>(asked: Request): Promise<T> =>
        engine.ask<T>(
          asked,
          (event) => (event.kind === "alternatives" ? view.learn(event.place, event) : this.tell(event)),
          signal,
        );
      const { load, asked: before } = partsOf(request);
      await engine.load(keyOf(model, request), () => ask<LoadResult>(load));
      chat.showStatus(`Looking at ${tokens.length} tokens`);
      const asked: AlternativesRequest = {
        ...load,
        ...before,
        kind: "alternatives",
        answer: tokens.map(({ id }) => id),
        count: ALTERNATIVES,
      };
      await ask<null>(asked);
      chat.showStatus("Done");
    }, turn);
  }

  /** Continue the streaming answer with the present processor. */
  private async useProcessor(): Promise<void> {
    const run = this.current;
    if (run?.phase !== "running" || !run.answered.tokens.length) return;
    try {
      readProcessor();
    } catch (error) {
      if (error instanceof FormError) return; // It is being written.
      throw error;
    }
    await this.chat.stop();
    await this.resume(true);
  }

  /** Continue from a token of an answer: with another token in its place, with a new pick, or end there. */
  private goOn(turn: ChatTurn, place: number, instead: Token | null): void {
    const answered = this.answered.get(turn)!;
    const begun = answered.tokens.slice(0, place);
    if (this.chat.busy) return;
    if (instead && instead.id < 0) {
      this.chat.rewind(turn);
      answered.tokens.length = place;
      (turn.data as TurnData).unfinished = false;
      lookAway(answered);
      turn.answer = textOf(begun);
      turn.note = `${place} tokens, ended by hand`;
    } else void this.continue(turn, instead ? [...begun, instead] : begun);
  }

  /** Answer a turn again; the answer begins with these tokens. */
  private continue(turn: ChatTurn, tokens: Token[]): Promise<void> {
    this.begun = tokens.length ? { model: this.answered.get(turn)!.model, tokens: [...tokens], uncounted: 0 } : null;
    const sent = this.chat.send(turn.asked, turn, textOf(tokens), turn.attached);
    this.begun = null;
    return sent;
  }

  // Events.

  /** Show the worker's events of an answer. */
  private show(event: CapstanEvent, run: Run): void {
    if (event.kind === "status" && event.text === "generating") run.generating = performance.now();
    if (event.kind !== "text") return this.tell(event);
    clearInterval(this.clock);
    const { turn, answered } = run;
    turn.append(event.text);
    // An id below 0 stands for the text that was held back at the end.
    if (event.token_id < 0) return;
    answered.tokens.push({ id: event.token_id, text: event.text });
    run.last = performance.now();
    run.first ||= run.last;
    run.tokens++;
    if (run.tokens === 1 && !turn.continues) this.chat.showStatus("Answering");
    diagnostics.notePace(run);
  }

  /** Show a step, and that of an answer after some time once more: without a GPU some take minutes. */
  private showStep(step: string): void {
    const { chat } = this;
    const begun = performance.now();
    chat.showStatus(step);
    clearInterval(this.clock);
    if (!this.current) return;
    this.clock = setInterval(() => {
      const seconds = Math.round((performance.now() - begun) / 1000);
      const slow = diagnostics.runsWithoutGpu() ? "; without a GPU it takes minutes" : "";
      chat.showStatus(`${step}: ${seconds} s so far${slow}`);
    }, STEP_MS);
  }

  /** Show the worker's events of a load, or of its own start. */
  tell(event: CapstanEvent): void {
    const { chat } = this;
    clearInterval(this.clock);
    const progress = this.meter.take(event);
    if (progress && (event.kind !== "status" || comes(progress)))
      chat.showStatus(loadStatus(progress), progress.bytes ? progress.fraction : null, 1);
    else if (event.kind === "status") this.showStep(event.text.charAt(0).toUpperCase() + event.text.slice(1));
    else if (event.kind === "ready") diagnostics.showHow(event);
    else if (event.kind === "recovered")
      chat.showStatus(`The GPU was lost and opened again in ${milliseconds(event.ms)}; the run goes on`);
    else if (event.kind === "damaged") {
      const { sources, damaged, shards } = event;
      const what = `${damaged.length} of ${shards} parts of ${sources.join(", ")} changed on disk`;
      chat.showStatus(`${what}; the next run loads the model again and fetches them, earlier answers may be wrong`);
    }
  }
}

/** Whether bytes of the load are still to come. */
function comes({ bytes, totalBytes }: LoadProgress): boolean {
  return bytes > 0 && (totalBytes === null || bytes < totalBytes);
}

function lookAway(answered: Answered): void {
  answered.view?.element.remove();
  answered.view?.panel.remove();
  answered.view = null;
  answered.looking.setAttribute("aria-pressed", "false");
}

function textOf(tokens: readonly Token[]): string {
  return tokens.map(({ text }) => text).join("");
}

/** The load that serves a request, and what it asks. */
function partsOf(request: ChatRequest | GenerateRequest): {
  load: LoadRequest;
  asked: Pick<AlternativesRequest, "prompt" | "messages">;
} {
  if (request.kind === "chat") {
    const { messages, ...rest } = request;
    return { load: { ...rest, kind: "load" }, asked: { prompt: null, messages } };
  }
  const { prompt, prompt_ids: _, ...rest } = request;
  return { load: { ...rest, kind: "load", max_length: null }, asked: { prompt } };
}

/** The same for what one load serves. */
function keyOf(
  model: Chosen,
  { dtype, device, capture }: Pick<GenerateRequest, "dtype" | "device" | "capture">,
): string {
  return JSON.stringify([model.key, dtype, device, capture]);
}
