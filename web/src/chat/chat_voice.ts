// Speech in <capstan-chat>: questions by microphone, which are sent at each pause, and answers that are read aloud.

import { Capstan, type LoadOptions, type LoadProgress, type Transcriber, type Voice } from "capstan-webgpu";
import { refused } from "./chat_errors";
import type { Parts } from "./chat_parts";
import { objectIn } from "./chat_model";
import type { ChatTurn } from "./chat_turn";
import { loadStatus } from "../page/progress";

/** Milliseconds between two looks at an answer that grows while it is read aloud. */
const LOOK_MS = 200;

/** The element. */
interface SpokenChat extends HTMLElement {
  value: string;
  readonly busy: boolean;
  readonly turns: readonly ChatTurn[];
  send(text: string): Promise<void>;
  stop(): Promise<void>;
  showStatus(text: string, done?: number | null, total?: number): void;
  showError(error: unknown): void;
}

interface Loading {
  signal: AbortSignal;
  onProgress: (progress: LoadProgress) => void;
}

export class ChatVoice {
  private listening: AbortController | null = null;
  private speaking: { turn: ChatTurn; stop: AbortController } | null = null;
  private readonly transcriber: Loaded<Transcriber>;
  private readonly voice: Loaded<Voice>;

  constructor(
    private readonly parts: Parts,
    private readonly chat: SpokenChat,
  ) {
    parts.microphone.addEventListener("click", () => void this.listen());
    this.transcriber = new Loaded(chat, "transcriber", (model, options) => Capstan.loadTranscriber(model, options));
    this.voice = new Loaded(chat, "voice", (model, options) => Capstan.loadVoice(model, options));
  }

  /** Show the button if the element has a model that hears. */
  choose(): void {
    this.parts.microphone.hidden = !this.chat.hasAttribute("transcriber");
  }

  /** End listening and reading; false if neither was under way. */
  end(): boolean {
    const some = this.listening !== null || this.speaking !== null;
    this.listening?.abort();
    this.speaking?.stop.abort();
    return some;
  }

  /** End the workers of both models. */
  close(): void {
    this.end();
    this.transcriber.close();
    this.voice.close();
  }

  /** Read an answer aloud, also while it comes; end that if it is being read. */
  async read(turn: ChatTurn): Promise<void> {
    const before = this.speaking;
    before?.stop.abort();
    if (before?.turn === turn) return;
    const mine = (this.speaking = { turn, stop: new AbortController() });
    const { signal } = mine.stop;
    try {
      const voice = await this.voice.get(signal);
      await voice.play(
        growing(turn, () => this.chat.busy, signal),
        { signal },
      );
    } catch (error) {
      if (!signal.aborted) this.chat.showError(error);
    }
    if (this.speaking === mine) this.speaking = null;
  }

  /** Write down the speech in a sound. Rejects with OptionError if the element has no model that hears, and with that model's errors. */
  async hear(file: File): Promise<string> {
    const { chat } = this;
    const { name } = file;
    if (!chat.hasAttribute("transcriber"))
      throw refused(`${name} is a sound, and there is no model that hears (transcriber); choose one, or give the text`);
    const transcriber = await this.transcriber.get(new AbortController().signal);
    chat.showStatus(`Listening to ${name}`);
    try {
      return (await transcriber.transcribe(file).result).text.trim();
    } finally {
      if (!chat.busy) chat.showStatus("");
    }
  }

  /** Listen to the microphone until this is called again: each utterance is sent, and interrupts an answer. */
  private async listen(): Promise<void> {
    if (this.listening) return this.listening.abort();
    const { chat } = this;
    const mine = (this.listening = new AbortController());
    const { signal } = mine;
    this.show(true);
    try {
      const transcriber = await this.transcriber.get(signal);
      const microphone = await Capstan.microphone();
      signal.addEventListener("abort", () => void microphone.close());
      if (signal.aborted) void microphone.close();
      chat.showStatus("Listening; what you say is sent when you pause");
      for await (const { text, final } of transcriber.listen(microphone, { signal })) {
        const said = text.trim();
        if (!said) continue;
        this.speaking?.stop.abort();
        await chat.stop();
        chat.value = said;
        if (final) this.ask(said);
      }
      mine.abort();
    } catch (error) {
      if (!signal.aborted) chat.showError(error);
      mine.abort();
    }
    this.listening = null;
    this.show(false);
    if (!chat.busy) chat.showStatus("");
  }

  private ask(text: string): void {
    void this.chat.send(text);
    const turn = this.chat.turns.at(-1);
    if (turn?.asked === text && this.chat.hasAttribute("voice")) void this.read(turn);
  }

  private show(on: boolean): void {
    const { microphone } = this.parts;
    microphone.ariaPressed = String(on);
    microphone.title = microphone.ariaLabel = on ? "Stop listening" : "Speak";
  }
}

/** A model of an attribute, which is loaded when it is used first. */
class Loaded<Model extends { close(): void }> {
  private kept: { name: string; model: Promise<Model> } | null = null;

  constructor(
    private readonly chat: SpokenChat,
    private readonly attribute: string,
    private readonly load: (model: string, options: Loading & Pick<LoadOptions, "hub" | "assetsUrl">) => Promise<Model>,
  ) {}

  /** The model, whose load is shown. Rejects with the error of the load. */
  async get(signal: AbortSignal): Promise<Model> {
    const { chat } = this;
    const name = chat.getAttribute(this.attribute) ?? "";
    if (this.kept?.name !== name) {
      this.close();
      const { hub, assetsUrl } = objectIn<LoadOptions>(chat, "options");
      const places = { ...(hub === undefined ? {} : { hub }), ...(assetsUrl === undefined ? {} : { assetsUrl }) };
      const onProgress = (progress: LoadProgress): void =>
        chat.showStatus(loadStatus(progress), progress.bytes ? progress.fraction : null, 1);
      this.kept = { name, model: this.load(name, { ...places, signal, onProgress }) };
    }
    try {
      return await this.kept.model;
    } catch (error) {
      this.kept = null;
      throw error;
    } finally {
      if (!chat.busy) chat.showStatus("");
    }
  }

  close(): void {
    void this.kept?.model.then((model) => model.close()).catch(() => undefined);
    this.kept = null;
  }
}

/** The parts of an answer without its reasoning, until it has ended. */
async function* growing(
  turn: ChatTurn,
  answering: () => boolean,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  let told = 0;
  for (let ends = false; !ends && !signal.aborted;) {
    ends = !answering();
    const { reply } = turn;
    if (reply.length > told) yield reply.slice(told);
    told = reply.length;
    if (!ends) await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}
