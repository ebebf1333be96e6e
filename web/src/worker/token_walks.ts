// Masks of the tokens that a grammar allows: py_src/capstan/guidance/masks.py says how they are found.

import type { PyProxy } from "pyodide/ffi";

/** The position after a position and a class of bytes, -1 if the byte does not fit. */
type Step = (position: number, symbol: number) => number;

/** The bytes of a model's tokens, as capstan.guidance.TokenBytes has them. */
export class TokenWalks {
  private readonly ends: Uint32Array;
  private readonly bytes: Uint8Array;

  constructor(ends: PyProxy, data: PyProxy) {
    // The highest bit says that a token ends outputs; it has no bytes.
    this.ends = copied(ends).map((end) => end & 0x7fffffff);
    this.bytes = new Uint8Array(copied(data).buffer);
  }

  walk(classes: PyProxy, step: Step): TokenWalk {
    return new TokenWalk(this.ends, this.bytes, classes.toJs() as Uint8Array, step);
  }
}

/** All tokens along one automaton. */
export class TokenWalk {
  private readonly width: number;
  /** By position and class the next position, 0 where it is not known. */
  private table: Int32Array;

  constructor(
    private readonly ends: Uint32Array,
    private readonly bytes: Uint8Array,
    private readonly classes: Uint8Array,
    private readonly step: Step,
  ) {
    this.width = Math.max(...classes) + 1;
    this.table = new Int32Array(64 * this.width);
  }

  /** The tokens that fit after a position: a bit each, in u32 words. */
  mask(start: number): Uint8Array {
    const { ends, bytes, classes, width } = this;
    const words = new Uint32Array((ends.length + 30) >> 5);
    for (let token = 0; token < ends.length - 1; token++) {
      const end = ends[token + 1]!;
      let at = ends[token]!;
      if (at === end) continue;
      let position = start;
      while (position > 0 && at < end) {
        const place = position * width + classes[bytes[at++]!]!;
        position = this.table[place] || this.fill(place);
      }
      if (position > 0) words[token >> 5]! |= 1 << (token & 31);
    }
    return new Uint8Array(words.buffer);
  }

  private fill(place: number): number {
    while (this.table.length <= place) {
      const longer = new Int32Array(2 * this.table.length);
      longer.set(this.table);
      this.table = longer;
    }
    return (this.table[place] ||= this.step(Math.floor(place / this.width), place % this.width));
  }
}

function copied(numbers: PyProxy): Uint32Array<ArrayBuffer> {
  const buffer = numbers.getBuffer("u32");
  try {
    return new Uint32Array(buffer.data as Uint32Array);
  } finally {
    buffer.release();
  }
}
