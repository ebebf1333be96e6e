// Live captions: a sound goes to the worker block by block, and what it has understood comes back.

import type { Client } from "./client";
import { refused } from "../wire/errors";
import { type Kind, type Kinds, number, oneOf, shown, signal, text } from "./kinds";
import { ask } from "./load_in_worker";
import type { Turns } from "./run";
import { isA } from "./sound_samples";
import type { CapstanEvent, Caption, ListenRequest } from "../wire/protocol";

export interface ListenOptions {
  /** A code, such as "de"; without one the model finds it. */
  language?: string;
  /** "translate" gives English text of any language; by default "transcribe". */
  task?: "transcribe" | "translate";
  /** Seconds of silence that end an utterance, 0.5 unless given. */
  silence?: number;
  /** The least probability of speech, 0.5 unless given. */
  threshold?: number;
  /** Seconds between the partial texts of an utterance, 1 unless given; 0 for none. A slow machine makes fewer. */
  interval?: number;
  /** Ends the iteration. */
  signal?: AbortSignal;
}

export const LISTEN_KINDS: Kinds = {
  ...{ language: text, task: oneOf("transcribe", "translate"), silence: number, threshold: number, interval: number },
  signal,
};

/** Blocks of samples of one channel at 16,000 Hz, of any length; a Microphone gives such. */
export type Blocks = AsyncIterable<Float32Array>;

export const blocks: Kind = {
  words: "a microphone, or another async iterable of Float32Arrays at 16000 Hz",
  is: (value) => typeof (value as Partial<Blocks> | null | undefined)?.[Symbol.asyncIterator] === "function",
};

let sounds = 0;

/** The captions of a sound while it comes. Runs of the same transcriber take turns with it. */
export async function* liveCaptions(
  client: Client,
  turns: Turns,
  sound: Blocks,
  { signal: given, ...options }: ListenOptions,
): AsyncGenerator<Caption, void, undefined> {
  const live = ++sounds;
  const captions: Caption[] = [];
  const own = new AbortController();
  const abort = (): void => own.abort();
  if (given?.aborted) return;
  given?.addEventListener("abort", abort, { once: true });
  let wake = (): void => {};
  const heard = (event: CapstanEvent): void => {
    if (event.kind !== "caption") return;
    captions.push(captionOf(event));
    wake();
  };
  const send = async (about: Pick<ListenRequest, "action">, samples: Float32Array | null = null): Promise<void> => {
    const turn = turns.take();
    const cancel = (): void => void client.request({ kind: "cancel" }).catch(() => undefined);
    try {
      await turn.begun;
      const action = own.signal.aborted ? "drop" : about.action;
      if (action !== "begin") own.signal.addEventListener("abort", cancel, { once: true });
      await ask(client, { kind: "listen", live, ...about, action }, heard, samples);
    } catch (error) {
      if (!own.signal.aborted) throw error;
    } finally {
      own.signal.removeEventListener("abort", cancel);
      turn.end();
    }
  };
  /** The captions as they come while a request is answered. */
  async function* during(work: Promise<void>): AsyncGenerator<Caption, void, undefined> {
    let ended = false;
    const end = work.finally(() => {
      ended = true;
      wake();
    });
    end.catch(() => undefined);
    while (true) {
      yield* captions.splice(0);
      if (ended) return end;
      await new Promise<void>((resolve) => (wake = resolve));
    }
  }
  const stopped = new Promise<null>((resolve) =>
    own.signal.addEventListener("abort", () => resolve(null), { once: true }),
  );
  const blocks = sound[Symbol.asyncIterator]();
  try {
    yield* during(send({ action: "begin", ...options }));
    while (!own.signal.aborted) {
      const next = await Promise.race([blocks.next(), stopped]);
      if (!next) break;
      if (next.done) {
        yield* during(send({ action: "end" }));
        return;
      }
      if (!isA("Float32Array", next.value))
        throw refused(`a block of the sound is ${shown(next.value)}; it must be a Float32Array of samples at 16000 Hz`);
      if (next.value.length) yield* during(send({ action: "hear" }, next.value.slice()));
    }
  } finally {
    given?.removeEventListener("abort", abort);
    own.abort();
    // The worker has dropped a sound that has ended.
    await send({ action: "drop" });
    void blocks.return?.();
  }
}

function captionOf({ text, start, end, final }: Caption): Caption {
  return { text, start, end, final };
}
