/**
 * `capstan-webgpu/chat`: the custom element `<capstan-chat>`, a conversation with a model in the page.
 * docs/web_element.md lists its attributes, properties, events and styles.
 *
 * @module chat
 */

import { Capstan, CapstanError, type LoadOptions, type Message } from "capstan-webgpu";
import type { Answer, CapstanChatEvents } from "./chat_events";
import { showFailure } from "./chat_errors";
import { ModelAnswers, objectIn, refused } from "./chat_model";
import { build, hasMouse, LABEL, type Parts } from "./chat_parts";
import { ChatTurn } from "./chat_turn";
import { loadStatus } from "../page/progress";

export { ChatTurn, type TurnPlace } from "./chat_turn";
export type { Answer, CapstanChatAttributes, CapstanChatEvents, CapstanChatHandlers } from "./chat_events";

/** Lets the module be imported without a page, such as by a server that renders pages. */
const Element: typeof HTMLElement = globalThis.HTMLElement ?? class {};

const ATTRIBUTES = ["model", "options", "run-options", "system", "placeholder", "label", "plain"] as const;
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
  private readonly shown: ChatTurn[] = [];
  /** Ends the loaded model, or the load that is under way. */
  private ending: AbortController | null = null;
  /** The page's function, or the one that calls the model; null without either. */
  private answers: Answer | null = null;
  private work: { stop: AbortController; turn: ChatTurn | null; ended: Promise<void> } | null = null;
  private answering: ChatTurn | null = null;
  private editing: ChatTurn | null = null;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    this.parts = build(root);
    const { form, prompt, stop, clear, keep } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    for (const button of [stop, keep]) button.addEventListener("click", () => this.cancel());
    clear.addEventListener("click", () => {
      this.clear();
      this.focus();
      this.tell("capstan-clear", null);
    });
    prompt.addEventListener("keydown", (event) => {
      // While a word is composed, Enter ends the word. On a touch keyboard it breaks the line, and the button sends.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      if (!event.ctrlKey && !event.metaKey && !hasMouse()) return;
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
    const said = this.shown.flatMap((turn) => [
      { role: "user", content: turn.asked },
      ...(turn === this.answering ? [] : [{ role: "assistant", content: turn.reply }]),
    ]);
    return system ? [{ role: "system", content: system }, ...said] : said;
  }

  get turns(): readonly ChatTurn[] {
    return [...this.shown];
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
    return this.work !== null;
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

  /** Send what stands in the field. */
  submit(): void {
    void this.send(this.value, this.editing);
  }

  /** Do the same as Escape: end the answer or other work, else end the editing of a turn. */
  cancel(): void {
    if (this.work) void this.stop();
    else if (this.editing) this.keep();
    else return;
    this.focus({ preventScroll: true });
  }

  /** End what is under way, and resolve once it has ended; the text of an answer so far stays. */
  async stop(): Promise<void> {
    this.work?.stop.abort();
    await this.work?.ended;
  }

  /**
   * Send a message and have it answered; resolves when the answer has ended. With `instead` the message replaces that
   * turn and those after it. The answer continues `begun`.
   */
  async send(text: string, instead: ChatTurn | null = null, begun = ""): Promise<void> {
    const { answers, editing } = this;
    if (!answers || this.work) return;
    this.showError(null);
    if (!text.trim()) {
      const message = "the prompt is empty; write something";
      this.showError(new CapstanError({ type: "PromptError", message }));
      return;
    }
    const gone = instead && this.shown.includes(instead) ? this.shown.splice(this.shown.indexOf(instead)) : [];
    for (const { element } of gone) element.remove();
    const turn = new ChatTurn(text, this, {
      edit: (turn) => this.edit(turn),
      again: (turn) => void this.send(turn.asked, turn),
      grow: (add) => this.grow(add),
    });
    turn.answer = begun;
    this.put(turn);
    if (editing || text === this.value) this.value = "";
    this.mark(null);
    let finishReason = "";
    await this.occupy(async (signal) => {
      this.answering = turn;
      try {
        const reason = await answers(turn, signal);
        finishReason = signal.aborted ? "abort" : (reason ?? "stop");
      } catch (error) {
        if (signal.aborted) finishReason = "abort";
        else if (turn.answer !== begun) turn.note = "broken off";
        else if (this.shown.includes(turn)) {
          // The conversation is what it was before.
          this.rewind(turn, false);
          this.put(...gone.splice(0));
          if (editing) this.mark(editing);
          if (editing || !instead) this.value ||= text;
        }
        throw error;
      } finally {
        if (this.answering === turn) this.answering = null;
      }
    }, turn);
    for (const turn of gone) turn.discard();
    if (finishReason && this.shown.includes(turn))
      this.tell("capstan-answer", { messages: this.messages, finishReason });
  }

  /**
   * Do other work that Stop aborts; nothing is sent until it has ended. Resolves then, or at once if other work is
   * under way. A failure is shown; `turn` is marked as busy.
   */
  async occupy(work: (signal: AbortSignal) => Promise<void>, turn: ChatTurn | null = null): Promise<void> {
    if (this.work) return;
    const stop = new AbortController();
    let end = (): void => {};
    const mine = (this.work = { stop, turn, ended: new Promise<void>((resolve) => (end = resolve)) });
    this.showBusy();
    this.tell("capstan-busy", true);
    let failure: unknown = null;
    try {
      await work(stop.signal);
    } catch (error) {
      if (!stop.signal.aborted) failure = error;
    }
    end();
    if (this.work !== mine) return;
    this.work = null;
    this.showBusy();
    this.tell("capstan-busy", false);
    if (failure) this.showError(failure);
  }

  /** Go back to a turn: those after it go, and with `included` false the turn itself. */
  rewind(turn: ChatTurn, included = true): void {
    const at = this.shown.indexOf(turn);
    if (at < 0) return;
    for (const gone of this.shown.splice(at + (included ? 1 : 0))) {
      gone.element.remove();
      gone.discard();
    }
    this.parts.welcome.hidden = this.shown.length > 0;
  }

  /** Begin a new conversation; an answer that is under way is stopped. */
  clear(): void {
    void this.stop();
    this.keep();
    if (this.shown[0]) this.rewind(this.shown[0], false);
    this.showBusy();
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
    this.showStatus("");
    this.tell("capstan-error", told);
  }

  connectedCallback(): void {
    this.name();
    // Moving an element removes and inserts it.
    if (!this.ending && !this.answers) this.load();
  }

  disconnectedCallback(): void {
    queueMicrotask(() => {
      if (this.isConnected) return;
      if (this.ending) this.unload();
      else void this.stop();
    });
  }

  attributeChangedCallback(name: Attribute, before: string | null, now: string | null): void {
    if (name === "placeholder" || name === "label") this.name();
    else if (name === "plain") for (const turn of this.shown) turn.chooseForm();
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
    const ending = (this.ending = new AbortController());
    // Several attributes that are set one after the other load once.
    queueMicrotask(() => void this.begin(ending));
  }

  private async begin(ending: AbortController): Promise<void> {
    const { signal } = ending;
    if (signal.aborted) return;
    let llm: Capstan;
    try {
      const model = this.getAttribute("model");
      if (!model) throw refused("<capstan-chat> has no attribute model; give it the URL of a model's folder");
      const onProgress: LoadOptions["onProgress"] = (progress) => {
        if (!signal.aborted) this.showStatus(loadStatus(progress), progress.bytes ? progress.fraction : null, 1);
      };
      llm = await Capstan.load(model, { ...objectIn<LoadOptions>(this, "options"), onProgress, signal });
    } catch (error) {
      if (!signal.aborted) this.showError(error);
      return;
    }
    signal.addEventListener("abort", () => llm.close(), { once: true });
    if (signal.aborted) return llm.close();
    const model = new ModelAnswers(llm, this);
    this.answers = (turn, stop) => model.answer(turn, stop);
    this.open();
    this.showStatus(llm.stats().model.title);
    this.tell("capstan-load", llm);
  }

  private unload(): void {
    this.ending?.abort();
    this.work?.stop.abort();
    if (this.work) this.tell("capstan-busy", false);
    this.ending = this.answers = this.work = null;
    this.clear();
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

  private edit(turn: ChatTurn): void {
    this.mark(turn);
    this.value = turn.asked;
    this.focus();
  }

  /** End the editing of a turn without a change. */
  private keep(): void {
    if (this.editing) this.value = "";
    this.mark(null);
  }

  /** Mark the turns that the next one replaces; null marks none. */
  private mark(editing: ChatTurn | null): void {
    this.editing = editing;
    this.parts.keep.hidden = !editing;
    const at = editing ? this.shown.indexOf(editing) : Infinity;
    this.shown.forEach(({ element }, index) => element.classList.toggle("replaced", index >= at));
  }

  private put(...turns: ChatTurn[]): void {
    const { log, list, welcome } = this.parts;
    this.shown.push(...turns);
    list.append(...turns.map(({ element }) => element));
    welcome.hidden = this.shown.length > 0;
    log.scrollTop = log.scrollHeight;
  }

  /** Let an answer grow, and keep its end in sight; a user who scrolled back to read is left there. */
  private grow(add: () => void): void {
    const { log } = this.parts;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    add();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  private showBusy(): void {
    const { log, prompt, send, stop, clear, progress } = this.parts;
    const focused = this.shadowRoot!.activeElement;
    send.disabled = this.busy || !this.answers;
    stop.disabled = !this.busy;
    clear.disabled = this.busy || this.shown.length === 0;
    if (!this.busy) progress.hidden = true;
    for (const turn of this.shown) turn.setBusy(this.busy, turn === this.work?.turn);
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
