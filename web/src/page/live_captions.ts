// Live captions: a sound goes to the worker block by block, and what it has understood comes back.

import type { Client } from "./client";
import { refused } from "../wire/errors";
import { type Kind, type Kinds, number, oneOf, shown, signal, text } from "./kinds";
import { ask } from "./load_in_worker";
import type { Turns } from "./run";
import { isA } from "./sound_samples";
import type { Caption, ListenRequest } from "../wire/protocol";

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
  { signal: aborting, ...options }: ListenOptions,
): AsyncGenerator<Caption, void, undefined> {
  const live = ++sounds;
  const captions: Caption[] = [];
  const send = async (about: Pick<ListenRequest, "action">, samples: Float32Array | null = null): Promise<void> => {
    const turn = turns.take();
    const cancel = (): void => void client.request({ kind: "cancel" }).catch(() => undefined);
    try {
      await turn.begun;
      const action = aborting?.aborted && about.action !== "begin" ? "drop" : about.action;
      if (action !== "begin") aborting?.addEventListener("abort", cancel, { once: true });
      const request: ListenRequest = { kind: "listen", live, ...about, action };
      await ask(
        client,
        request,
        (event) => void (event.kind === "caption" && captions.push(captionOf(event))),
        samples,
      );
    } catch (error) {
      if (!aborting?.aborted) throw error;
    } finally {
      aborting?.removeEventListener("abort", cancel);
      turn.end();
    }
  };
  const stopped = new Promise<null>((resolve) =>
    aborting?.addEventListener("abort", () => resolve(null), { once: true }),
  );
  if (aborting?.aborted) return;
  await send({ action: "begin", ...options });
  const heard = sound[Symbol.asyncIterator]();
  let last: "end" | "drop" = "drop";
  try {
    while (!aborting?.aborted) {
      const next = await Promise.race([heard.next(), stopped]);
      if (next?.done) last = "end";
      if (!next || next.done) break;
      if (!isA("Float32Array", next.value))
        throw refused(`a block of the sound is ${shown(next.value)}; it must be a Float32Array of samples at 16000 Hz`);
      if (next.value.length) await send({ action: "hear" }, next.value.slice());
      yield* captions.splice(0);
    }
  } finally {
    // A worker that was closed has dropped it.
    if (last === "drop") await send({ action: "drop" }).catch(() => undefined);
    void heard.return?.();
  }
  if (last === "end") await send({ action: "end" });
  yield* captions;
}

function captionOf({ text, start, end, final }: Caption): Caption {
  return { text, start, end, final };
}
