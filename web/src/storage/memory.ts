// A data file in memory, from which onnxruntime-web's CPU execution provider reads weights.

import type { Chunk } from "./chunk";

export class Memory {
  readonly bytes: Uint8Array<ArrayBuffer>;

  constructor(size: number) {
    this.bytes = new Uint8Array(size);
  }

  accept(chunk: Chunk, start: number, length: number): void {
    const part = chunk.view(Math.min(length, Math.max(0, this.bytes.length - start)));
    if (part.length > 0) this.bytes.set(part, start);
  }

  finish(): void {
    // Every byte is where it belongs already.
  }
}
