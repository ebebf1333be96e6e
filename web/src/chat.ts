// `capstan-webgpu/chat`: the custom element <capstan-chat>, a conversation with a model in the page. docs/web.md lists its
// attributes, properties, events and styles.

import {
  Capstan,
  CapstanError,
  type ChatOptions,
  type LoadOptions,
  type Message,
  type Run,
  type Session,
} from "capstan-webgpu";
import style from "./chat.css";

/** So that the module can be imported where there is no page, as by a server that renders pages. */
const Element: typeof HTMLElement = globalThis.HTMLElement ?? class {};

const ATTRIBUTES = ["model", "options", "run-options", "system", "placeholder"] as const;
type Attribute = (typeof ATTRIBUTES)[number];
const PLACEHOLDER = "Say something";

/** The events of the element, for the page that holds it. */
export interface CapstanChatEvents {
  /** The model is there; `detail` is the Capstan. */
  "capstan-load": CustomEvent<Capstan>;
  /** An answer ended, or was stopped; `detail` has all messages. */
  "capstan-answer": CustomEvent<{ messages: readonly Message[]; finishReason: string }>;
  "capstan-error": CustomEvent<CapstanError>;
}

export class CapstanChat extends Element {
  static readonly observedAttributes: readonly string[] = ATTRIBUTES;
  private readonly parts: Parts;
  /** Ends the loaded model, or the load that is under way. */
  private ending: AbortController | null = null;
  private llm: Capstan | null = null;
  private session: Session | null = null;
  private run: Run | null = null;

  constructor() {
    super();
    this.parts = build(this.attachShadow({ mode: "open", delegatesFocus: true }));
    const { form, input, stop } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.submit();
    });
    stop.addEventListener("click", () => this.stop());
    input.addEventListener("keydown", (event) => {
      // While a word is composed, Enter ends the word.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        void this.submit();
      }
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
  }

  /** The conversation so far. */
  get messages(): readonly Message[] {
    return this.session?.messages ?? [];
  }

  /** End the answer that is being given; what was said of it stays. */
  stop(): void {
    this.run?.abort();
  }

  /** Say something and have it answered; returns when the answer has ended. */
  async send(text: string): Promise<void> {
    if (!this.session || this.run || !text.trim()) return;
    let run: Run;
    try {
      run = this.run = this.session.send(text, this.read("run-options") as ChatOptions);
    } catch (error) {
      this.fail(error);
      return;
    }
    this.say("");
    this.parts.error.hidden = true;
    const asked = this.show("user", text);
    const answer = this.show("assistant", "");
    answer.setAttribute("aria-busy", "true");
    this.busy(true);
    const { session } = this;
    try {
      for await (const part of run) this.extend(answer, part);
      const { finishReason, text: whole } = await run.result;
      // Parts are what came; a stop text, for one, is cut off later.
      answer.lastElementChild!.textContent = whole;
      if (finishReason === "abort") this.say("Stopped.");
      if (finishReason === "length") this.say("The conversation is as long as the model can read.");
      this.tell("capstan-answer", { messages: session.messages, finishReason });
    } catch (error) {
      // The session is what it was before.
      asked.remove();
      answer.remove();
      if (this.session === session) {
        this.parts.input.value ||= text;
        this.fail(error);
      }
    } finally {
      answer.removeAttribute("aria-busy");
      if (this.run === run) {
        this.run = null;
        this.busy(false);
      }
    }
  }

  connectedCallback(): void {
    this.parts.input.placeholder = this.getAttribute("placeholder") ?? PLACEHOLDER;
    // Moving an element removes and inserts it.
    if (!this.ending) this.load();
  }

  disconnectedCallback(): void {
    queueMicrotask(() => {
      if (!this.isConnected) this.unload();
    });
  }

  attributeChangedCallback(name: Attribute, before: string | null, now: string | null): void {
    if (name === "placeholder") this.parts.input.placeholder = now ?? PLACEHOLDER;
    else if (name !== "run-options" && this.ending && before !== now) this.load();
  }

  /** Load the model that the attributes name; a model of earlier attributes is closed. */
  private load(): void {
    this.unload();
    const { log, error, input } = this.parts;
    log.replaceChildren();
    error.hidden = true;
    input.disabled = true;
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
      const onProgress: LoadOptions["onProgress"] = ({ status, loaded, total }) =>
        signal.aborted || this.say(total > 0 ? `${status}: ${Math.floor((100 * loaded) / total)} %` : status);
      llm = await Capstan.load(model, { ...(this.read("options") as LoadOptions), onProgress, signal });
    } catch (error) {
      if (!signal.aborted) this.fail(error);
      return;
    }
    signal.addEventListener("abort", () => llm.close(), { once: true });
    if (signal.aborted) return llm.close();
    if (!llm.stats().canChat) {
      this.fail(refused("the model has no chat template; take one that was made for chats"));
      return;
    }
    const system = this.getAttribute("system");
    this.llm = llm;
    this.session = llm.session(system ? [{ role: "system", content: system }] : []);
    this.parts.input.disabled = false;
    this.say("");
    this.busy(false);
    this.tell("capstan-load", llm);
  }

  private unload(): void {
    this.ending?.abort();
    this.ending = this.llm = this.session = this.run = null;
    this.busy(false);
  }

  private async submit(): Promise<void> {
    const { input } = this.parts;
    if (!this.session || this.run || !input.value.trim()) return;
    const text = input.value;
    input.value = "";
    await this.send(text);
  }

  private show(role: "user" | "assistant", text: string): HTMLElement {
    const message = made("div", { part: `message ${role}`, className: role });
    const who = made("span", { className: "who", textContent: role === "user" ? "You: " : "Model: " });
    message.append(who, made("span", { className: "text", textContent: text }));
    this.parts.log.append(message);
    this.parts.log.scrollTop = this.parts.log.scrollHeight;
    return message;
  }

  private extend(message: HTMLElement, part: string): void {
    const { log } = this.parts;
    // Whoever scrolled back to read is left there.
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    message.lastElementChild!.append(part);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  /** Show how it stands. */
  private say(text: string): void {
    if (this.parts.status.textContent !== text) this.parts.status.textContent = text;
  }

  /** Show a failure and tell the page. */
  private fail(error: unknown): void {
    const { name: type, message } = error as Error;
    const told = error instanceof CapstanError ? error : new CapstanError({ type, message });
    this.say("");
    this.parts.error.textContent = told.message;
    this.parts.error.hidden = false;
    this.tell("capstan-error", told);
  }

  private busy(running: boolean): void {
    const { send, stop } = this.parts;
    const focused = this.shadowRoot!.activeElement;
    stop.hidden = !running;
    send.hidden = running;
    send.disabled = !this.session;
    // A button that goes takes the focus with it.
    if (focused === send || focused === stop) this.parts.input.focus();
  }

  private tell<Name extends keyof CapstanChatEvents>(name: Name, detail: CapstanChatEvents[Name]["detail"]): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  /** An attribute with JSON; throws OptionError for what is none. */
  private read(name: "options" | "run-options"): object {
    const text = this.getAttribute(name);
    if (text === null) return {};
    let found: unknown;
    try {
      found = JSON.parse(text);
    } catch {
      found = null;
    }
    if (typeof found !== "object" || found === null || Array.isArray(found))
      throw refused(`the attribute ${name} of <capstan-chat> is ${JSON.stringify(text)}; it must be an object in JSON`);
    return found;
  }
}

interface Parts {
  log: HTMLElement;
  status: HTMLElement;
  error: HTMLElement;
  form: HTMLFormElement;
  input: HTMLTextAreaElement;
  send: HTMLButtonElement;
  stop: HTMLButtonElement;
}

function made<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  { part, ...rest }: Partial<Omit<HTMLElementTagNameMap[Tag], "part">> & { part?: string },
): HTMLElementTagNameMap[Tag] {
  const element = Object.assign(document.createElement(tag), rest);
  if (part) element.setAttribute("part", part);
  return element;
}

function build(root: ShadowRoot): Parts {
  const parts: Parts = {
    // It can be scrolled, so it must be in reach of the keyboard.
    log: made("div", { part: "log", role: "log", tabIndex: 0, ariaLabel: "Conversation" }),
    status: made("p", { part: "status", role: "status" }),
    error: made("p", { part: "error", role: "alert", hidden: true }),
    form: made("form", { part: "form" }),
    input: made("textarea", { part: "input", rows: 2, ariaLabel: "Message", disabled: true }),
    send: made("button", { part: "button send", textContent: "Send", disabled: true }),
    stop: made("button", { part: "button stop", type: "button", textContent: "Stop", hidden: true }),
  };
  const { log, status, error, form, input, send, stop } = parts;
  form.append(input, send, stop);
  root.append(made("style", { textContent: style }), log, status, error, form);
  return parts;
}

function refused(message: string): CapstanError {
  return new CapstanError({ type: "OptionError", message });
}

declare global {
  interface HTMLElementTagNameMap {
    "capstan-chat": CapstanChat;
  }
}

if (globalThis.customElements && !customElements.get("capstan-chat"))
  customElements.define("capstan-chat", CapstanChat);
