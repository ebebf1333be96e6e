// Lets a loaded model answer what the user writes in a <capstan-chat>, with that element's options.

import {
  Capstan,
  type ChatOptions,
  type LoadOptions,
  type LoadProgress,
  type Message,
  type Run,
  type Session,
} from "capstan-webgpu";
import { refused } from "./chat_errors";
import type { ChatTurn } from "./chat_turn";

/** The element. */
interface Conversation extends HTMLElement {
  readonly messages: readonly Message[];
  readonly turns: readonly ChatTurn[];
  showStatus(text: string): void;
}

const NO_FILES = "the model continues a text, and takes no files; remove them, or give a model with a chat template";

/** Answers turns; between them the model keeps what was computed for the conversation. */
export class ModelAnswers {
  private session: Session | null = null;

  constructor(
    private readonly llm: Capstan,
    private readonly chat: Conversation,
  ) {}

  /** Answer the last turn, or continue the answer that it has, and resolve to the finish reason. */
  async answer(turn: ChatTurn, signal: AbortSignal): Promise<string> {
    const { chat, llm } = this;
    const { answer: begun } = turn;
    chat.showStatus("");
    turn.continues = !llm.stats().canChat;
    const options = { ...objectIn<ChatOptions>(chat, "run-options"), signal };
    if (turn.continues && turn.attached.length) throw refused(NO_FILES);
    const run = turn.continues ? llm.complete(turn.asked + begun, options) : this.converse(turn, begun, options);
    for await (const part of run) turn.append(part);
    const { finishReason, contextFull, text } = await run.result;
    // Parts are what came; a stop text, for one, is cut off later.
    turn.answer = begun + text;
    if (!chat.turns.includes(turn)) return finishReason;
    if (finishReason === "abort") chat.showStatus("Stopped.");
    const full = !contextFull ? "answer" : turn.continues ? "text" : "conversation";
    if (finishReason === "length") chat.showStatus(`The ${full} is as long as it may be.`);
    return finishReason;
  }

  private converse({ content }: ChatTurn, begun: string, options: ChatOptions): Run {
    const before = this.chat.messages.slice(0, -1);
    const kept = this.session?.messages.slice(0, before.length);
    if (this.session && JSON.stringify(kept) === JSON.stringify(before)) this.session.rewind(before.length);
    else {
      // An answer was broken off, or the page changed one.
      void this.session?.close();
      this.session = this.llm.session(before);
    }
    const asked: Message = { role: "user", content };
    if (!begun) return this.session.send(asked, options);
    return this.session.send([asked, { role: "assistant", content: begun }], {
      ...options,
      continueFinalMessage: true,
    });
  }
}

/** Load the model that the element names. `show` gets the progress until the signal aborts. */
export async function modelOf(
  element: HTMLElement,
  signal: AbortSignal,
  show: (progress: LoadProgress) => void,
): Promise<Capstan> {
  const model = element.getAttribute("model");
  if (!model) throw refused("<capstan-chat> has no attribute model; give it the URL of a model's folder");
  const onProgress = (progress: LoadProgress): void => void (signal.aborted || show(progress));
  return Capstan.load(model, { ...objectIn<LoadOptions>(element, "options"), onProgress, signal });
}

/** An attribute's object in JSON, empty without the attribute; throws OptionError for anything else. */
export function objectIn<T extends object>(element: HTMLElement, name: "options" | "run-options"): Partial<T> {
  const text = element.getAttribute(name);
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
