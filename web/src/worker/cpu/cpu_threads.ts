// The other threads of a program: workers that run their share of each operation.

import { type Assets, startWorker } from "../../wire/assets";
import type { ToWorker } from "../../wire/protocol";
import { instantiate, type Kernels } from "./kernels";

/** The places in a program's memory, in words, of a count of runs, of whether it was closed, and of the arguments of a
 * run. The barrier of web/kernels/barrier.ts has the words before. */
const RUNS = 48;
const CLOSED = 49;
const ARGUMENTS = 64;

/** Milliseconds for a worker to come up. */
const START_MS = 10000;

type N = number;
/** The arguments of Kernels.run but for the thread and their number. */
export type RunArguments = [N, N, N, N, N, N, N, N, N];

/** Start all threads but this one; resolves to no workers if one does not start. */
export async function startThreads(
  assets: Assets,
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  threads: number,
): Promise<Worker[]> {
  const workers: Worker[] = [];
  try {
    const started = Array.from({ length: threads - 1 }, (_, i) => {
      const worker = startWorker(assets);
      workers.push(worker);
      return new Promise<void>((resolve, reject) => {
        worker.onmessage = () => resolve();
        worker.onerror = () => reject(new Error("a thread did not start"));
        setTimeout(() => reject(new Error("a thread did not start in time")), START_MS);
        worker.postMessage({ tag: "compute", module, memory, thread: i + 1, threads } satisfies ToWorker);
      });
    });
    await Promise.all(started);
    return workers;
  } catch {
    for (const worker of workers) worker.terminate();
    return [];
  }
}

/** Run a program in all threads; this one is the first. */
export function runInThreads(kernels: Kernels, buffer: ArrayBufferLike, given: RunArguments, threads: number): void {
  if (threads > 1) {
    const words = new Int32Array(buffer);
    words.set(given, ARGUMENTS);
    Atomics.add(words, RUNS, 1);
    Atomics.notify(words, RUNS);
  }
  kernels.run(...given, 0, threads);
}

export function closeThreads(buffer: ArrayBufferLike, workers: readonly Worker[]): void {
  const words = new Int32Array(buffer);
  Atomics.store(words, CLOSED, 1);
  Atomics.add(words, RUNS, 1);
  Atomics.notify(words, RUNS);
  for (const worker of workers) worker.terminate();
}

/** Runs a thread until the program is closed. Its worker takes no more messages. */
export async function compute(
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  thread: number,
  threads: number,
  ready: () => void,
): Promise<void> {
  const kernels = await instantiate(module, memory);
  ready();
  // The message leaves with the end of a task.
  await new Promise((resolve) => setTimeout(resolve));
  const words = new Int32Array(memory.buffer);
  for (let run = 0; ;) {
    Atomics.wait(words, RUNS, run);
    const next = Atomics.load(words, RUNS);
    if (next === run) continue;
    run = next;
    if (Atomics.load(words, CLOSED)) return;
    const given = Array.from(words.subarray(ARGUMENTS, ARGUMENTS + 9)) as RunArguments;
    kernels.run(...given, thread, threads);
  }
}
