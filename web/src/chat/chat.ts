/**
 * `capstan-webgpu/chat`: the custom element `<capstan-chat>`, a conversation with a model in the page.
 * docs/web_element.md lists its attributes, properties, events and styles.
 *
 * @module chat
 */

import { type Capstan, CapstanError, type Message } from "capstan-webgpu";
import type { Attachment } from "./attachments";
import type { Answer, CapstanChatEvents } from "./chat_events";
import { showFailure, unstored } from "./chat_errors";
import { ModelAnswers, modelOf } from "./chat_model";
import { build, hasMouse, LABEL, type Parts, sends } from "./chat_parts";
import { ChatLog } from "./chat_log";
import { ChatStorage } from "./chat_storage";
import { checkSaved, type SavedConversation } from "./chat_tree";
import { ChatTurn, type TurnActions } from "./chat_turn";
import { Wait } from "./chat_wait";
import { Work } from "./chat_work";
import { ChatVoice } from "./chat_voice";
import { ComposerFiles } from "./composer_files";

export type { Attachment } from "./attachments";
export type { SavedConversation, SavedTurn } from "./chat_tree";
export { ChatTurn, type TurnPlace } from "./chat_turn";
export type { Answer, CapstanChatAttributes, CapstanChatEvents, CapstanChatHandlers } from "./chat_events";

/** Lets the module be imported without a page, such as by a server that renders pages. */
const Element: typeof HTMLElement = globalThis.HTMLElement ?? class {};

const ATTRIBUTES = [
  ...(["model", "options", "run-options", "system", "placeholder", "label", "plain", "attachments"] as const),
  ...(["transcriber", "voice", "storage"] as const),
];
type Attribute = (typeof ATTRIBUTES)[number];
const PLACEHOLDER = "Say something";

export interface CapstanChat {
  addEventListener<Name extends keyof (HTMLElementEventMap & CapstanChatEvents)>(
    type: Name,
    listener: (event: (HTMLElementEventMap & CapstanChatEvents)[Name]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export class CapstanChat extends Element {
  static readonly observedAttributes: readonly string[] = ATTRIBUTES;
  private readonly parts: Parts;
  private readonly log: ChatLog;
  private readonly files: ComposerFiles;
  private readonly voice: ChatVoice;
  private readonly storage: ChatStorage;
  /** Ends the loaded model, or the load that is under way. */
  private ending: AbortController | null = null;
  /** The page's function, or the one that calls the model; null without either. */
  private answers: Answer | null = null;
  private readonly work = new Work((busy) => {
    this.showBusy();
    this.tell("capstan-busy", busy);
  });
  private answering: ChatTurn | null = null;
  private readonly wait = new Wait(
    (text, done, total) => this.showStatus(text, done, total),
    () => this.showBusy(),
  );
  /** Has the state "empty" while there is no turn. */
  private readonly states: CustomStateSet;

  constructor() {
    super();
    this.states = this.attachInternals().states;
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    this.parts = build(root);
    this.log = new ChatLog(this.parts, () => {
      this.showBusy();
      this.tell("capstan-turns", null);
    });
    this.voice = new ChatVoice(this.parts, this);
    const hear = (file: File): Promise<string> => this.voice.hear(file);
    this.files = new ComposerFiles(this.parts, this, hear, (error) => this.showError(error));
    this.storage = new ChatStorage(this, (error) => this.showError(unstored(error)));
    const { form, prompt, stop, clear, retry } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    stop.addEventListener("click", () => this.cancel());
    retry.addEventListener("click", () => (this.answers ? this.submit() : this.load()));
    clear.addEventListener("click", () => {
      this.clear();
      this.focus();
      this.tell("capstan-clear", null);
    });
    prompt.addEventListener("keydown", (event) => {
      if (!sends(event)) return;
      event.preventDefault();
      this.submit();
    });
    root.addEventListener("keydown", (event) => {
      if ((event as KeyboardEvent).key === "Escape") this.cancel();
    });
  }

  /** The conversation so far, without the reasoning of its answers. */
  get messages(): readonly Message[] {
    const system = this.getAttribute("system");
    const said = this.turns.flatMap((turn) => [
      { role: "user", content: turn.content },
      ...(turn === this.answering ? [] : [{ role: "assistant", content: turn.reply }]),
    ]);
    return system ? [{ role: "system", content: system }, ...said] : said;
  }

  get turns(): readonly ChatTurn[] {
    return this.log.tree.shown;
  }

  /** The text in the field. */
  get value(): string {
    return this.parts.prompt.value;
  }

  set value(text: string) {
    this.parts.prompt.value = text;
  }

  /** Whether an answer, or other work, is under way. */
  get busy(): boolean {
    return this.work.busy;
  }

  /** The page's own way to answer, in the place of the model that the attributes name. */
  get answer(): Answer | null {
    return this.ending ? null : this.answers;
  }

  set answer(answer: Answer | null) {
    this.unload();
    this.answers = answer;
    if (answer) this.open();
    else if (this.isConnected) this.load();
  }

  /** Focus the field. */
  override focus(options?: FocusOptions): void {
    this.parts.prompt.focus(options);
  }

  /** Send the text in the field with the files beside it; while the model loads, they are sent after that. */
  submit(): void {
    if (this.wait.loading) this.wait.send(this.value.trim() !== "");
    else void this.send(this.value, null, "", this.files.waiting);
  }

  /** Let files wait for the next message: pictures, texts, code and PDF files. Others are refused on the page. */
  attach(files: Iterable<File>): Promise<void> {
    return this.files.add([...files]);
  }

  /** Do the same as Escape: end the answer or other work, else end the editing of a turn. */
  cancel(): void {
    if (this.voice.end() || this.busy) void this.stop();
    else if (this.wait.sends) this.wait.send(false);
    else if (!this.turns.some((turn) => turn.keep())) return;
    this.focus({ preventScroll: true });
  }

  /** End what is under way, and resolve once it has ended; the text of an answer so far stays. */
  stop(): Promise<void> {
    return this.work.stop();
  }

  /**
   * Send a message with its files and have it answered, after a load; resolves when the answer has ended. With `instead`
   * the message takes the place of that turn, which stays beside it, with those after it. The answer continues `begun`.
   */
  async send(
    text: string,
    instead: ChatTurn | null = null,
    begun = "",
    attached: readonly Attachment[] = [],
  ): Promise<void> {
    if (this.wait.loading) await this.wait.ended;
    const { tree } = this.log;
    if (!this.answers || this.busy) return;
    this.showError(null);
    if (!text.trim()) {
      const message = "the prompt is empty; write something";
      this.showError(new CapstanError({ type: "PromptError", message }));
      return;
    }
    const replaced = instead && tree.has(instead) ? instead : null;
    const turn = this.turnOf(text, attached);
    turn.answer = begun;
    tree.add(turn, replaced ? tree.before(replaced) : (tree.shown.at(-1) ?? null));
    this.log.update();
    if (text === this.value) this.value = "";
    if (!instead && attached.length) this.files.show([]);
    await this.run(turn, () => {
      if (turn.answer !== begun || !tree.has(turn)) return;
      // The conversation is what it was before.
      const gone = tree.remove(turn);
      if (replaced) tree.choose(replaced);
      this.log.forget(gone);
      if (replaced && text !== replaced.asked) replaced.edit(text);
      else if (!instead) {
        this.value ||= text;
        this.files.show(attached);
      }
    });
  }

  /** Have the answer of the last turn continued; resolves when it has ended. */
  async resume(turn: ChatTurn): Promise<void> {
    if (!this.answers || this.busy || turn !== this.turns.at(-1)) return;
    this.showError(null);
    turn.note = "";
    await this.run(turn, () => {});
  }

  /** Have a turn answered. `fail` is called, before the failure is shown, if the answer was not stopped by the user. */
  private async run(turn: ChatTurn, fail: () => void): Promise<void> {
    const answers = this.answers!;
    const { answer: begun } = turn;
    let finishReason = "";
    await this.occupy(async (signal) => {
      this.answering = turn;
      try {
        const reason = await answers(turn, signal);
        finishReason = signal.aborted ? "abort" : (reason ?? "stop");
      } catch (error) {
        if (signal.aborted) finishReason = "abort";
        else if (turn.answer !== begun) turn.note = "broken off";
        if (!signal.aborted) fail();
        throw error;
      } finally {
        if (this.answering === turn) this.answering = null;
      }
    }, turn);
    if (finishReason && this.turns.includes(turn))
      this.tell("capstan-answer", { messages: this.messages, finishReason });
  }

  /**
   * Do other work that Stop aborts; nothing is sent until it has ended. Resolves then, or at once if other work is
   * under way. A failure is shown; `turn` is marked as busy.
   */
  async occupy(work: (signal: AbortSignal) => Promise<void>, turn: ChatTurn | null = null): Promise<void> {
    const failure = await this.work.run(work, turn);
    if (failure) this.showError(failure);
  }

  /** Go back to a turn: those after it are deleted, and with `included` false the turn itself. */
  rewind(turn: ChatTurn, included = true): void {
    const { tree } = this.log;
    this.log.forget(included ? tree.cut(turn) : tree.remove(turn));
  }

  /** Begin a new conversation; an answer that is under way is stopped. */
  clear(): void {
    void this.stop();
    this.log.forget(this.log.tree.clear());
  }

  /** The whole conversation, also an answer that is under way, for `restore`. */
  save(): SavedConversation {
    return this.log.tree.save();
  }

  /** Show a saved conversation in place of the present one. Throws OptionError for one that is damaged. */
  restore(saved: SavedConversation): void {
    checkSaved(saved);
    this.clear();
    const turns: ChatTurn[] = [];
    for (const { asked, answer, note, continues, attached, before, data } of saved.turns) {
      const turn = this.turnOf(asked, attached);
      Object.assign(turn, { continues, answer, note, data });
      this.log.tree.add(turn, before === null ? null : turns[before]!);
      turns.push(turn);
    }
    if (saved.shown !== null) this.log.tree.choose(turns[saved.shown]!);
    this.log.update();
  }

  /** Show the progress, with a bar once a part is done; a `total` of 0 is unknown. */
  showStatus(text: string, done: number | null = null, total = 0): void {
    const { status, progress } = this.parts;
    if (status.textContent !== text) status.textContent = text;
    progress.hidden = done === null;
    if (total > 0) Object.assign(progress, { max: total, value: done });
    else progress.removeAttribute("value");
  }

  /** Show a failure and report it to the page; null hides it. */
  showError(error: unknown): void {
    const told = showFailure(this.parts, error);
    if (!told) return;
    this.parts.retry.hidden = this.answers !== null && !this.value;
    this.showStatus("");
    this.tell("capstan-error", told);
  }

  connectedCallback(): void {
    this.name();
    this.files.choose();
    this.voice.choose();
    void this.storage.choose();
    // Moving an element removes and inserts it.
    if (!this.ending && !this.answers) this.load();
  }

  disconnectedCallback(): void {
    queueMicrotask(() => {
      if (this.isConnected) return;
      this.voice.close();
      if (this.ending) this.unload();
      else void this.stop();
    });
  }

  attributeChangedCallback(name: Attribute, before: string | null, now: string | null): void {
    if (name === "placeholder" || name === "label") this.name();
    else if (name === "attachments") this.files.choose();
    else if (name === "storage") void this.storage.choose();
    else if (name === "transcriber") this.voice.choose();
    else if (name === "plain" || name === "voice") for (const turn of this.turns) turn.chooseForm();
    else if (name !== "run-options" && this.ending && before !== now) this.load();
  }

  private name(): void {
    const { prompt } = this.parts;
    prompt.autocapitalize = this.autocapitalize;
    prompt.placeholder = this.getAttribute("placeholder") ?? PLACEHOLDER;
    prompt.ariaLabel = this.getAttribute("label") ?? LABEL;
  }

  // The model of the attributes.

  /** Load the model that the attributes name; a model of earlier attributes is closed. */
  private load(): void {
    this.unload();
    this.parts.prompt.disabled = false;
    this.wait.begin();
    const ending = (this.ending = new AbortController());
    // Several attributes that are set one after the other load once.
    queueMicrotask(() => void this.begin(ending));
  }

  private async begin(ending: AbortController): Promise<void> {
    const { signal } = ending;
    if (signal.aborted) return;
    let llm: Capstan;
    try {
      llm = await modelOf(this, signal, (progress) => this.wait.take(progress));
    } catch (error) {
      if (signal.aborted) return;
      this.wait.end();
      this.parts.prompt.disabled = true;
      this.showError(error);
      return;
    }
    signal.addEventListener("abort", () => llm.close(), { once: true });
    if (signal.aborted) return llm.close();
    const model = new ModelAnswers(llm, this);
    this.answers = (turn, stop) => model.answer(turn, stop);
    const sends = this.wait.end();
    this.open();
    this.showStatus(llm.stats().model.title);
    this.tell("capstan-load", llm);
    if (sends && this.value.trim()) this.submit();
  }

  private unload(): void {
    this.ending?.abort();
    this.ending = this.answers = null;
    this.work.drop();
    this.wait.end();
    this.storage.leave();
    this.clear();
    if (this.isConnected) void this.storage.choose();
    this.showError(null);
    this.parts.prompt.disabled = true;
  }

  /** Messages can be sent from now on. */
  private open(): void {
    this.parts.prompt.disabled = false;
    this.showStatus("");
    this.showBusy();
  }

  // The conversation on the page.

  private turnOf(asked: string, attached: readonly Attachment[] = []): ChatTurn {
    const actions: TurnActions = {
      read: (turn) => void this.voice.read(turn),
      send: (turn, text) => void this.send(text, turn, "", turn.attached),
      choose: (turn) => {
        this.log.tree.choose(turn);
        this.log.update();
      },
      grow: (add) => this.log.grow(add),
    };
    return new ChatTurn(asked, this, actions, attached);
  }

  private showBusy(): void {
    const { log, prompt, send, stop, clear, progress } = this.parts;
    const focused = this.shadowRoot!.activeElement;
    const { loading, sends } = this.wait;
    send.disabled = this.busy || sends || !(this.answers || loading);
    stop.disabled = !this.busy && !sends;
    // The one stands in the other's place.
    send.hidden = !stop.disabled;
    stop.hidden = stop.disabled;
    clear.disabled = this.busy || this.turns.length === 0;
    if (!this.busy && !loading) progress.hidden = true;
    if (this.turns.length) this.states.delete("empty");
    else this.states.add("empty");
    for (const turn of this.turns) turn.setBusy(this.busy, turn === this.work.turn);
    log.setAttribute("aria-busy", String(this.busy));
    // A button that is disabled loses the focus.
    if ((focused === send || focused === stop) && hasMouse()) prompt.focus({ preventScroll: true });
  }

  private tell<Name extends keyof CapstanChatEvents>(name: Name, detail: CapstanChatEvents[Name]["detail"]): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

declare global {
  interface HTMLElementTagNameMap {
    "capstan-chat": CapstanChat;
  }
}

if (globalThis.customElements && !customElements.get("capstan-chat"))
  customElements.define("capstan-chat", CapstanChat);
