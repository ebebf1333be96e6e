// The memory of a program: the planned part, and caches after it.

import { EngineError } from "../../wire/errors";

const PAGE = 65536;
const MOST_PAGES = 65536;
/** Pages for caches, 64 MB, without which memory is of no use. */
const LEAST_GROWTH = 1024;

export class CpuMemory {
  readonly memory: WebAssembly.Memory;
  /** The free parts after the planned one, by address. */
  private free: [address: number, bytes: number][] = [];
  private end: number;

  /** `planned` bytes are at the start, about `growth` may come. */
  constructor(planned: number, growth: number, shared: boolean) {
    this.end = planned;
    const initial = Math.ceil(planned / PAGE);
    const wanted = Math.min(MOST_PAGES, initial + Math.ceil(growth / PAGE));
    this.memory = reserved(initial, shared ? wanted : MOST_PAGES, planned, shared);
  }

  get buffer(): ArrayBufferLike {
    return this.memory.buffer;
  }

  take(wanted: number): number {
    const bytes = Math.ceil(wanted / 64) * 64;
    const place = this.free.findIndex(([, size]) => size >= bytes);
    if (place >= 0) {
      const [address, size] = this.free[place]!;
      if (size === bytes) this.free.splice(place, 1);
      else this.free[place] = [address + bytes, size - bytes];
      return address;
    }
    const address = this.end;
    const missing = Math.ceil((address + bytes) / PAGE) - this.buffer.byteLength / PAGE;
    try {
      if (missing > 0) this.memory.grow(missing);
    } catch (error) {
      throw outOfMemory(bytes, error);
    }
    this.end += bytes;
    return address;
  }

  give(address: number, wanted: number): void {
    this.free.push([address, Math.ceil(wanted / 64) * 64]);
    this.free.sort(([a], [b]) => a - b);
    const joined: [number, number][] = [];
    for (const [start, size] of this.free) {
      const last = joined.at(-1);
      if (last && last[0] + last[1] === start) last[1] += size;
      else joined.push([start, size]);
    }
    const last = joined.at(-1);
    if (last && last[0] + last[1] === this.end) this.end = joined.pop()![0];
    this.free = joined;
  }
}

/** Browsers keep addresses for the most that shared memory may grow, and phones have few: less growth is tried then. */
function reserved(initial: number, most: number, bytes: number, shared: boolean): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial, maximum: most, shared });
  } catch (error) {
    if (most <= initial + LEAST_GROWTH) throw outOfMemory(bytes, error);
    return reserved(initial, Math.max(initial + LEAST_GROWTH, Math.floor((initial + most) / 2)), bytes, shared);
  }
}

function outOfMemory(bytes: number, error: unknown): EngineError {
  return new EngineError(
    "OutOfMemoryError",
    `the browser gives no ${bytes} bytes of WebAssembly memory: ${String(error)}; take a smaller model or a shorter max_length`,
  );
}
