// `Capstan.loadVoice`: text to speech by a model in a worker of its own.

import { readOptions } from "./arguments";
import type { Client } from "./client";
import { asCapstanError, refused } from "../wire/errors";
import { callable, flag, type Kind, type Kinds, number, read, shown, signal, text } from "./kinds";
import { ask } from "./load_in_worker";
import { loadOneModel, type OneModelOptions } from "./one_model";
import { sentences, type SpokenText } from "./sentences";
import { SAMPLE_RATE, type Speeches, speeches } from "./speeches";
import type { LoadVoiceResult, ModelFolder, SpeakResult } from "../wire/protocol";

/** `play` makes at most this number of seconds of sound in advance. */
const AHEAD = 20;

/** Gives the phonemes of a sentence; `voice` is the name of the voice that speaks. */
export type Phonemize = (sentence: string, voice: string) => string | Promise<string>;

export interface VoiceOptions extends OneModelOptions {
  /** Makes the phonemes, for languages other than English. */
  phonemize?: Phonemize;
}

export interface SpeakOptions {
  /** The name of a file in the model's folder voices/; "af_heart" unless given. */
  voice?: string;
  /** From 0.5 to 2; 1 unless given. */
  speed?: number;
  /** Whether the text is phonemes. */
  phonemes?: boolean;
  /** Ends the speech: loops over it end, `play` falls silent and resolves. */
  signal?: AbortSignal;
}

const KINDS: Kinds = { phonemize: callable };
const SPEAK_KINDS: Kinds = { voice: text, speed: number, phonemes: flag, signal };
const spoken: Kind = {
  words: "a string or an asynchronous iterable of strings",
  is: (value) =>
    typeof value === "string" || typeof (value as AsyncIterable<string>)?.[Symbol.asyncIterator] === "function",
};

/** A model that speaks, in one worker, which answers calls in their order. */
export class Voice {
  /** OpenAI's `audio.speech.create`. */
  readonly audio: { speech: Speeches };

  private constructor(
    private readonly client: Client,
    private readonly about: LoadVoiceResult,
    private readonly phonemize: Phonemize | undefined,
  ) {
    this.audio = { speech: speeches((given, options) => this.speak(given, options)) };
  }

  static async load(model: ModelFolder, given: VoiceOptions = {}): Promise<Voice> {
    const { client, about, options } = await loadOneModel(model, given, KINDS, (fields) => {
      return { kind: "load_voice", ...fields };
    });
    return new Voice(client, about as LoadVoiceResult, options.phonemize);
  }

  /** The device that computes, and the names of the voices; none for a folder that cannot be listed. */
  get stats(): { device: string; voices: string[] } {
    return { device: this.about.device, voices: [...this.about.voices] };
  }

  /**
   * The sound of each sentence, samples at 24,000 Hz, when the loop asks for it. A text may come in parts, as an answer of
   * `chat` does; leaving the loop ends that, too. Throws OptionError for a text with nothing to speak.
   */
  speak(text: SpokenText, given: SpeakOptions = {}): AsyncGenerator<Float32Array, void, undefined> {
    const options = readOptions("the options", given, SPEAK_KINDS);
    return this.parts(read("the text", text, spoken) as SpokenText, options);
  }

  /** Speak a text through the loudspeakers, the next sentence while one is heard; resolves at its end. */
  async play(text: SpokenText, given: SpeakOptions = {}): Promise<void> {
    const parts = this.speak(text, given);
    const context = new AudioContext({ sampleRate: SAMPLE_RATE });
    const silence = (): void => void (context.state === "closed" ? null : context.close());
    given.signal?.addEventListener("abort", silence, { once: true });
    try {
      let end = 0;
      for await (const samples of parts) {
        const buffer = new AudioBuffer({ length: samples.length, sampleRate: SAMPLE_RATE });
        buffer.copyToChannel(samples as Float32Array<ArrayBuffer>, 0);
        const source = new AudioBufferSourceNode(context, { buffer });
        source.connect(context.destination);
        end = Math.max(end, context.currentTime) + buffer.duration;
        source.start(end - buffer.duration);
        await until(context, end - AHEAD);
      }
      await until(context, end);
    } finally {
      given.signal?.removeEventListener("abort", silence);
      silence();
    }
  }

  /** End the worker and give its memory back; speech under way rejects with ClosedError. */
  close(): void {
    this.client.close();
  }

  private async *parts(
    text: SpokenText,
    { signal: given, ...options }: SpeakOptions,
  ): AsyncGenerator<Float32Array, void, undefined> {
    const over = new AbortController();
    const aborted = new Promise<null>((resolve) =>
      given?.addEventListener("abort", () => resolve(null), { signal: over.signal }),
    );
    const cut = sentences(text);
    let spoke = false;
    try {
      while (!given?.aborted) {
        const next = await Promise.race([cut.next(), aborted]);
        if (next?.done && !spoke && typeof text === "string")
          throw refused(`the text is ${shown(text)}, which has nothing to speak; give words`);
        if (next === null || next.done) return;
        const samples = await Promise.race([this.sentence(next.value, options), aborted]);
        if (!samples?.length) continue;
        spoke = true;
        yield samples;
      }
    } finally {
      over.abort();
      // It may be waiting for a part that never comes.
      void cut.return().catch(() => undefined);
    }
  }

  private async sentence(sentence: string, { voice, speed, phonemes }: SpeakOptions): Promise<Float32Array> {
    let made: unknown = null;
    if (this.phonemize && !phonemes) {
      made = await this.phonemize(sentence, voice ?? this.about.voice);
      if (typeof made !== "string") throw refused(`phonemize gave ${shown(made)}; it must give a string of phonemes`);
    }
    try {
      const answer = await ask(this.client, {
        kind: "speak",
        text: typeof made === "string" ? made : sentence,
        ...{ voice: voice ?? null, speed: speed ?? null, phonemes: phonemes === true || made !== null },
      });
      const bytes = Uint8Array.from(atob((answer as SpeakResult).samples), (letter) => letter.charCodeAt(0));
      return new Float32Array(bytes.buffer);
    } catch (error) {
      throw asCapstanError(error);
    }
  }
}

/** Wait for a time of a context, or its end. */
async function until(context: AudioContext, time: number): Promise<void> {
  while (context.state !== "closed" && context.currentTime < time)
    await new Promise((resolve) => setTimeout(resolve, 50));
}
