// Work that one worker does for another: it warms onnxruntime-web up, unpacks pieces of a snapshot, hashes shards, is a
// thread of a program.

import { type Assets, startWorker } from "../wire/assets";
import { compute } from "./cpu/cpu_threads";
import type { FromHelper, ToWorker } from "../wire/protocol";
import { countAssets, fetchedBytes } from "./fetched_bytes";
import { waitForCompilation, warmUpOrt } from "./ort";
import { hashShards } from "./storage/hashing";
import { tracer } from "./trace";
import { unpackPieces } from "./unpack_snapshot";

/**
 * Have onnxruntime-web compiled in a worker of its own. A browser compiles a function of it when it is first called, in
 * the thread that calls, which would keep Python waiting; what one worker compiled serves the others of the page. If
 * there can be no such worker, everything is compiled here, by the first session.
 */
export async function warmUpBeside(assets: Assets, bytes: boolean): Promise<void> {
  const begun = performance.now();
  let helper: Worker | null = null;
  const compiled = new Promise<void>((resolve) => {
    try {
      helper = startWorker(assets);
    } catch {
      // As in a SharedWorker, which can start no other.
      resolve();
      return;
    }
    helper.onmessage = ({ data }: MessageEvent<FromHelper | "warm">) => {
      if (data === "warm") resolve();
      else if ("sent" in data) fetchedBytes.sentAs(data.url, data.sent, data.packed);
      else fetchedBytes.reached(data.url, data.done);
    };
    helper.onerror = () => resolve();
    helper.postMessage({ tag: "warm up", assets, bytes } satisfies ToWorker);
  });
  void compiled.then(() => tracer.add("load", "compile onnxruntime-web in a second worker", begun));
  // Its compiled code is kept while it is in use.
  await waitForCompilation(compiled);
  (helper as Worker | null)?.terminate();
}

/** Answer a message of another worker. */
export function help(data: Exclude<ToWorker, { tag: "boot" | "input" | "request" | "cross-origin" }>): void {
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
