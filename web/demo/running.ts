// A run of the model: send, show what comes, stop, edit, answer again.

import type {
  AlternativesRequest,
  BurstTimes,
  CapstanEvent,
  ChatRequest,
  GenerateRequest,
  LoadRequest,
  LoadResult,
  Request,
} from "capstan-webgpu";
import * as diagnostics from "./diagnostics";
import { bytes, element, milliseconds, say } from "./elements";
import type { Engine } from "./engine";
import { showFailure, showNoFailure } from "./failure";
import { type Chosen, chosenModel } from "./models";
import { FormError, readProcessor, readSettings, type Settings, systemMessages } from "./settings";
import type { Token } from "./tokens";
import { Transcript, Turn } from "./transcript";

/** A run that is under way. */
interface Run extends diagnostics.Pace {
  turn: Turn;
  phase: "starting" | "loading" | "running" | "looking";
  stopped: boolean;
}

type Processor = ReturnType<typeof readProcessor>;

/** Milliseconds after the last key until a changed processor is used by the answer that streams. */
const TYPED_MS = 700;
/** The times of a run that has not begun. */
const NONE = { stopped: false, generating: 0, first: 0, last: 0, tokens: 0 };
/** The number of alternatives that are shown for each token. */
const ALTERNATIVES = 8;

const prompt = element("prompt", HTMLTextAreaElement);
const sendButton = element("run", HTMLButtonElement);
const stopButton = element("stop", HTMLButtonElement);
const clearButton = element("clear", HTMLButtonElement);
const keepButton = element("keep", HTMLButtonElement);
const progress = element("progress", HTMLProgressElement);

export class Running {
  readonly transcript = new Transcript();
  /** The bursts of the last run that finished. */
  bursts: BurstTimes[] = [];
  private current: Run | null = null;
  private held = false;
  private editing: Turn | null = null;
  private readonly actions = {
    edit: (turn: Turn): void => this.edit(turn),
    again: (turn: Turn): void => void this.send(turn.asked, turn),
    look: (turn: Turn): void => void this.look(turn),
    from: (turn: Turn, place: number, instead: Token | null): void => void this.goOn(turn, place, instead),
  };

  constructor(
    private readonly engine: Engine,
    private readonly onBusy: (on: boolean) => void,
  ) {
    sendButton.form!.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send(prompt.value, this.editing);
    });
    stopButton.addEventListener("click", () => this.stop());
    clearButton.addEventListener("click", () => this.clear());
    keepButton.addEventListener("click", () => this.keep());
    let typed: ReturnType<typeof setTimeout> | undefined;
    element("processor", HTMLTextAreaElement).addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => this.useProcessor(), TYPED_MS);
    });
  }

  get busy(): boolean {
    return this.current !== null;
  }

  /** Keep the worker free of runs, or let them come again; false if one is under way. */
  hold(on: boolean): boolean {
    if (this.current) return false;
    this.held = on;
    sendButton.disabled = on;
    this.transcript.busy = on;
    this.onBusy(on);
    return true;
  }

  /** Offer the examples that suit the chosen model. */
  offer(): void {
    let chat: boolean | null = null;
    try {
      ({ chat } = chosenModel());
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
    }
    this.transcript.offer(chat ? "chat" : "completion", (example) => void this.send(example, null));
  }

  /**
   * Send a text, in place of a turn and those after it if one is given; `begun` are the first tokens of its answer, which
   * goes on from there.
   */
  async send(text: string, instead: Turn | null, begun: readonly Token[] = []): Promise<void> {
    if (this.current || this.held) return;
    showNoFailure();
    diagnostics.clearFigures();
    let model: Chosen;
    let settings: Settings;
    let processor: Processor;
    try {
      if (!text.trim()) throw new FormError("prompt", "the prompt is empty; write something, or take an example");
      // Ids are those of a model's own vocabulary.
      model = (begun.length ? instead?.model : null) ?? chosenModel();
      settings = readSettings();
      processor = readProcessor();
    } catch (error) {
      showFailure(error);
      return;
    }
    if (instead) this.transcript.removeFrom(instead);
    const turn = new Turn(text, model.chat ? "chat" : "completion", this.actions, model);
    for (const token of begun) turn.append(token.text, token.id);
    const run: Run = { turn, phase: "starting", ...NONE };
    this.current = run;
    this.editing = null;
    if (text === prompt.value || instead) prompt.value = "";
    this.transcript.add(turn);
    this.setBusy(run, true);
    diagnostics.showAsked(settings.capture);
    try {
      await this.perform(run, model, settings, processor);
    } catch (error) {
      if (!run.stopped) this.failed(run, error);
    } finally {
      if (!run.stopped) this.end(run);
    }
  }

  private async perform(run: Run, model: Chosen, settings: Settings, processor: Processor): Promise<void> {
    const { turn } = run;
    const ask = <T>(request: Request): Promise<T> => this.engine.ask<T>(request, (event) => this.show(event, run));
    say("status", "Starting Python");
    await this.engine.start();
    if (run.stopped) return;
    if (processor) {
      await this.engine.define(processor.source, "processor.py");
      if (run.stopped) return;
      settings = { ...settings, logits_processor: processor.name };
    }
    run.phase = "loading";
    const load: LoadRequest = { kind: "load", ...settings, model: model.folder, max_length: null };
    const about = await this.engine.load(keyOf(model, settings), () => ask<LoadResult>(load));
    if (run.stopped) return;
    run.phase = "running";
    turn.be(about.can_chat ? "chat" : "completion");
    const request: ChatRequest | GenerateRequest = about.can_chat
      ? { ...load, kind: "chat", messages: [...systemMessages(), ...this.transcript.messages()] }
      : { kind: "generate", ...settings, model: model.folder, prompt: turn.asked, prompt_ids: null };
    turn.request = { ...request };
    if (turn.tokens.length) request.begun = turn.tokens.map(({ id }) => id);
    request.timeline = true;
    run.generating = performance.now();
    if (about.can_chat) say("status", "Reading");
    const result = await ask<diagnostics.Result>(request);
    if (run.stopped) return;
    turn.tell(diagnostics.showFinished(result));
    this.bursts = result.bursts ?? [];
    say("status", "Done");
  }

  /** End the run at once: what came so far stays, and what the worker still tells of it is not shown. */
  stop(): void {
    const run = this.current;
    if (!run) {
      if (this.editing) this.keep();
      return;
    }
    run.stopped = true;
    if (run.phase === "looking") {
      say("status", "Stopped looking");
      this.engine.cancel();
      this.end(run);
      return;
    }
    diagnostics.showStopped(run.tokens);
    run.turn.tell(run.tokens ? `${run.tokens} tokens, stopped` : "stopped");
    if (run.phase === "running") {
      say("status", "Stopped; the figures are this page's own");
      this.engine.cancel();
    } else {
      say("status", "Stopped; what was downloaded is kept, and the next run goes on from there");
      // A download goes on beneath a request that is cancelled; with its worker it ends.
      if (run.phase === "loading") this.engine.end();
      void this.engine.start().catch(() => undefined);
    }
    this.end(run);
    prompt.focus({ preventScroll: true });
  }

  /** Show an answer token by token and ask what the model says of each, or show it as a text again. */
  private async look(turn: Turn): Promise<void> {
    if (this.current || this.held) return;
    if (turn.view) {
      turn.lookAway();
      return;
    }
    const { request, model, tokens } = turn;
    if (!request || !tokens.length) return;
    showNoFailure();
    turn.look();
    const run: Run = { turn, phase: "looking", ...NONE };
    this.current = run;
    this.setBusy(run, true);
    const ask = <T>(asked: Request): Promise<T> => this.engine.ask<T>(asked, (event) => this.show(event, run));
    try {
      const { load, asked: before } = partsOf(request);
      await this.engine.load(keyOf(model, request), () => ask<LoadResult>(load));
      say("status", `Looking at ${tokens.length} tokens`);
      const asked: AlternativesRequest = {
        ...load,
        ...before,
        kind: "alternatives",
        answer: tokens.map(({ id }) => id),
        count: ALTERNATIVES,
      };
      await ask<null>(asked);
      if (!run.stopped) say("status", "Done");
    } catch (error) {
      if (!run.stopped && showFailure(error)) this.engine.forget();
    } finally {
      if (!run.stopped) this.end(run);
    }
  }

  /** Continue the streaming answer with the present processor. */
  private useProcessor(): void {
    const run = this.current;
    if (run?.phase !== "running" || !run.turn.tokens.length) return;
    try {
      readProcessor();
    } catch (error) {
      if (error instanceof FormError) return; // It is being written.
      throw error;
    }
    this.stop();
    void this.send(run.turn.asked, run.turn, run.turn.tokens);
  }

  /** Continue from a token of an answer: with another token in its place, with a new pick, or end there. */
  private goOn(turn: Turn, place: number, instead: Token | null): Promise<void> {
    const begun = turn.tokens.slice(0, place);
    if (this.current || this.held) return Promise.resolve();
    if (instead && instead.id < 0) {
      this.transcript.removeAfter(turn);
      turn.endAt(place);
      return Promise.resolve();
    }
    return this.send(turn.asked, turn, instead ? [...begun, instead] : begun);
  }

  private failed(run: Run, error: unknown): void {
    diagnostics.showNothingPrepared();
    // The question is not lost: it returns to the field, from which it can be sent again.
    if (!run.turn.answer) {
      this.transcript.removeFrom(run.turn);
      if (!prompt.value) prompt.value = run.turn.asked;
    } else run.turn.tell("broken off");
    if (showFailure(error)) this.engine.forget();
  }

  // Turns.

  private edit(turn: Turn): void {
    this.editing = turn;
    this.transcript.markFrom(turn);
    keepButton.hidden = false;
    prompt.value = turn.asked;
    prompt.focus();
  }

  private keep(): void {
    this.editing = null;
    this.transcript.markFrom(null);
    keepButton.hidden = true;
    prompt.value = "";
    prompt.focus();
  }

  private clear(): void {
    this.keep();
    this.transcript.clear();
    clearButton.disabled = true;
    diagnostics.clearFigures();
    this.offer();
  }

  private end(run: Run): void {
    this.current = null;
    this.setBusy(run, false);
  }

  private setBusy(run: Run, on: boolean): void {
    sendButton.disabled = on;
    stopButton.disabled = !on;
    clearButton.disabled = on || this.transcript.turns.length === 0;
    keepButton.hidden = true;
    run.turn.busy = on;
    this.transcript.busy = on;
    if (!on) progress.hidden = true;
    this.onBusy(on);
  }

  // Events.

  /** Show what the worker tells of a run, or of its own start. */
  show(event: CapstanEvent, run: Run | null = null): void {
    // Events of a start that a run waits for, or of a stopped run, would hide the text that the user should read.
    if (run ? run.stopped : this.current) return;
    if (event.kind === "status") {
      progress.hidden = true;
      if (run && event.text === "generating") run.generating = performance.now();
      say("status", event.text.charAt(0).toUpperCase() + event.text.slice(1));
    } else if (event.kind === "progress") {
      this.showProgress(event);
    } else if (event.kind === "ready") {
      diagnostics.showHow(event);
    } else if (event.kind === "recovered") {
      say("status", `The GPU was lost and opened again in ${milliseconds(event.ms)}; the run goes on`);
    } else if (event.kind === "damaged") {
      const { sources, damaged, shards } = event;
      const what = `${damaged.length} of ${shards} parts of ${sources.join(", ")} changed on disk`;
      say("status", `${what}; the next run loads the model again and fetches them, earlier answers may be wrong`);
    } else if (event.kind === "alternatives") {
      run?.turn.view?.learn(event.place, event);
    } else if (event.kind === "text" && run) {
      this.transcript.append(run.turn, event.text, event.token_id);
      if (event.token_id < 0) return;
      run.last = performance.now();
      run.first ||= run.last;
      run.tokens++;
      if (run.tokens === 1 && run.turn.kind === "chat") say("status", "Answering");
      diagnostics.showPace(run);
    }
  }

  private showProgress({ what, done, total }: Extract<CapstanEvent, { kind: "progress" }>): void {
    progress.hidden = false;
    // A server need not send the length of a file.
    if (total > 0) {
      progress.max = total;
      progress.value = done;
    } else progress.removeAttribute("value");
    say("status", `Loading ${what}: ${bytes(done)}${total > 0 ? ` of ${bytes(total)}` : ""}`);
  }
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
