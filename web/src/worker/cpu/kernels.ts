// The kernels of web/kernels for this browser, which build.py compiles.

import plain from "./plain.wasm";
import plainThreads from "./plain_threads.wasm";
import relaxed from "./relaxed.wasm";
import relaxedThreads from "./relaxed_threads.wasm";

export interface Kernels {
  run: (
    program: number,
    count: number,
    rows: number,
    past: number,
    kept: number,
    cache: number,
    room: number,
    scores: number,
    scoreBytes: number,
    thread: number,
    threads: number,
  ) => void;
}

/** The kernels as a module: with relaxed SIMD where the browser has it. */
export async function compileKernels(shared: boolean): Promise<{ module: WebAssembly.Module; relaxed: boolean }> {
  const [fast, slow] = shared ? [relaxedThreads, plainThreads] : [relaxed, plain];
  const isFast = WebAssembly.validate(fast);
  return { module: await WebAssembly.compile(isFast ? fast : slow), relaxed: isFast };
}

export async function instantiate(module: WebAssembly.Module, memory: WebAssembly.Memory): Promise<Kernels> {
  return (await WebAssembly.instantiate(module, { env: { memory } })).exports as unknown as Kernels;
}
