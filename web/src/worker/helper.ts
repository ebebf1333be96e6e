// Work that one worker does for another: it warms onnxruntime-web up, unpacks pieces of a snapshot, hashes shards, is a
// thread of a program.

import { type Assets, startWorker } from "../wire/assets";
import { compute } from "./cpu/cpu_threads";
import type { FromHelper, ToWorker } from "../wire/protocol";
import { countAssets, fetchedBytes } from "./fetched_bytes";
import { warmUpOrt } from "./ort";
import { hashShards } from "./storage/hashing";
import { tracer } from "./trace";
import { unpackPieces } from "./unpack_snapshot";

/**
 * Warm onnxruntime-web up in a worker of its own first. A browser compiles a function of it when it is first called, in
 * the thread that calls, which would keep Python waiting; what one worker compiled serves the others of the page. If
 * there can be no such worker, everything is compiled here.
 */
export async function warmUpBeside(assets: Assets, bytes: boolean): Promise<void> {
  const begun = performance.now();
  let helper: Worker | null = null;
  try {
    const started = (helper = startWorker(assets));
    await new Promise<void>((resolve) => {
      started.onmessage = ({ data }: MessageEvent<FromHelper | "warm">) => {
        if (data === "warm") resolve();
        else if ("sent" in data) fetchedBytes.sentAs(data.url, data.sent, data.packed);
        else fetchedBytes.reached(data.url, data.done);
      };
      started.onerror = () => resolve();
      started.postMessage({ tag: "warm up", assets, bytes } satisfies ToWorker);
    });
  } catch {
    // It is warmed up here alone, as in a SharedWorker, which can start no other.
  }
  await warmUpOrt(assets);
  tracer.add("load", "compile onnxruntime-web in a second worker", begun);
  // Its compiled code is kept while it is in use.
  helper?.terminate();
}

/** Answer a message of another worker. */
export function help(data: Exclude<ToWorker, { tag: "boot" | "input" | "request" }>): void {
  if (data.tag === "warm up") {
    const answer = postMessage as (message: FromHelper | "warm") => void;
    if (data.bytes)
      countAssets(data.assets, {
        reached: (url, done) => answer({ url, done }),
        sentAs: (url, sent, packed) => answer({ url, sent, packed }),
      });
    void warmUpOrt(data.assets).then(() => answer("warm"));
  } else if (data.tag === "compute") {
    void compute(data.module, data.memory, data.thread, data.threads, () => postMessage(true));
  } else if (data.tag === "unpack") {
    void unpackPieces(data.pieces, data.url, data.bytes);
  } else {
    hashShards(data.shards);
  }
}
