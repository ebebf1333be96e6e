// A `TranscriptionRun`: one sound that a page gave, from its decoding, by its segments as they come, to its whole text.

import type { Client } from "./client";
import { asCapstanError } from "../wire/errors";
import { flag, type Kinds, oneOf, signal, text } from "./kinds";
import { ask } from "./load_in_worker";
import type { Turns } from "./run";
import { samplesOf, type Sound } from "./sound_samples";
import type { CapstanEvent, SpeechSegment, TranscribeRequest, TranscribeResult } from "../wire/protocol";

export interface TranscribeOptions {
  /** A code, such as "de"; without one the model finds it. */
  language?: string;
  /** "translate" gives English text of any language; by default "transcribe". */
  task?: "transcribe" | "translate";
  /** Whether segments have their times. */
  timestamps?: boolean;
  /** Ends the run: its result has the text that came until then. */
  signal?: AbortSignal;
}

export const TRANSCRIBE_KINDS: Kinds = {
  ...{ language: text, task: oneOf("transcribe", "translate"), timestamps: flag, signal },
};

/** The text of a sound. */
export interface Transcription {
  text: string;
  /** In order; empty without timestamps. */
  segments: SpeechSegment[];
  /** The code of the spoken language. */
  language: string;
  /** The length of the sound in seconds. */
  duration: number;
  /** The segments as captions in the WebVTT format; null without timestamps. */
  vtt: string | null;
  /** Whether the run was aborted. */
  aborted: boolean;
}

/** A transcription under way: iterate once over its parts as they come (leaving the loop ends the run), or await `result`. */
export class TranscriptionRun implements AsyncIterable<SpeechSegment> {
  /** The whole text; rejects with a CapstanError. */
  readonly result: Promise<Transcription>;
  private readonly parts: SpeechSegment[] = [];
  private ended = false;
  private wake = (): void => {};
  private readonly own = new AbortController();

  constructor(client: Client, turns: Turns, sound: Sound, options: TranscribeOptions) {
    const { signal: given } = options;
    const abort = (): void => this.own.abort();
    if (given?.aborted) abort();
    given?.addEventListener("abort", abort, { once: true });
    this.result = this.perform(client, turns.take(), sound, options).finally(() => {
      given?.removeEventListener("abort", abort);
      this.ended = true;
      this.wake();
    });
    // Loops and awaits of the run get a failure.
    this.result.catch(() => undefined);
  }

  /** End the run now; its result has the text that came until then. */
  abort(): void {
    this.own.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SpeechSegment, Transcription, undefined> {
    try {
      for (let next = 0; ;) {
        if (next < this.parts.length) yield this.parts[next++]!;
        else if (this.ended) return await this.result;
        else await new Promise<void>((resolve) => (this.wake = resolve));
      }
    } finally {
      this.abort();
    }
  }

  private async perform(
    client: Client,
    turn: { begun: Promise<void>; end: () => void },
    sound: Sound,
    { language, task, timestamps = false }: TranscribeOptions,
  ): Promise<Transcription> {
    const { signal: aborted } = this.own;
    const cancel = (): void => void client.request({ kind: "cancel" }).catch(() => undefined);
    try {
      const samples = await samplesOf(sound);
      await turn.begun;
      if (aborted.aborted) return UNHEARD;
      aborted.addEventListener("abort", cancel, { once: true });
      const request: TranscribeRequest = {
        kind: "transcribe",
        ...{ language: language ?? null, task: task ?? null, timestamps },
      };
      const { ended, ...found } = (await ask(
        client,
        request,
        (event) => this.show(event),
        samples,
      )) as TranscribeResult;
      return { ...found, aborted: !ended };
    } catch (error) {
      throw asCapstanError(error);
    } finally {
      aborted.removeEventListener("abort", cancel);
      turn.end();
    }
  }

  private show(event: CapstanEvent): void {
    if (event.kind !== "segment") return;
    const { text, start, end } = event;
    this.parts.push({ text, start, end });
    this.wake();
  }
}

/** The result of a run that was aborted before its turn. */
const UNHEARD: Transcription = { text: "", segments: [], language: "en", duration: 0, vtt: null, aborted: true };
