// A part of a data file in memory: for onnxruntime-web's CPU execution provider, or for Python.

import type { ReadAt } from "./chunk";
import type { Target } from "./weight_load";

export class Memory implements Target {
  closed = false;
  readonly bytes: Uint8Array<ArrayBuffer>;

  /** `size` bytes from `start` of the file on. */
  constructor(
    size: number,
    private readonly start: number,
  ) {
    this.bytes = new Uint8Array(size);
  }

  wants(start: number, length: number): boolean {
    return start < this.start + this.bytes.length && this.start < start + length;
  }

  async put(start: number, length: number, read: ReadAt): Promise<boolean> {
    const from = Math.max(start, this.start);
    const part = this.bytes.subarray(from - this.start, Math.max(from, start + length) - this.start);
    return (await read(part, from)) === part.length;
  }

  finish(): Promise<void> {
    return Promise.resolve();
  }

  close(): void {
    this.closed = true;
  }
}
