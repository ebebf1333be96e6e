// Makes the rows that a table of a GGUF file gives to a run, where the table stays on disk;
// capstan.device.reference.unpacked defines the result, byte for byte.

import type { Change } from "./gpu/rearranger";
import { toHalf } from "./half";
import { BLOCKS, unpack } from "./unpacked_weights";

type Unpack = Extract<Change, ["unpack", ...unknown[]]>;

/** The quants, scales, minima or values of rows, which are the bytes `from`. */
export function unpackRows(from: Uint8Array, change: Unpack): Uint8Array<ArrayBuffer> {
  const [, type, what, rows, columns, bits, block] = change;
  const made = new ArrayBuffer((rows * (columns / block) * bits) / 8);
  if (what === "values") {
    const part: [number, number, number, Unpack] = [0, from.length, made.byteLength, change];
    unpack({ location: "", bytes: made.byteLength, file: "", parts: [part] }, { get: () => from }, made);
  } else if (what === "quants") {
    quants(from, type, bits, change[8], new Uint8Array(made));
  } else {
    const floats = bits === 32 ? new Float32Array(made) : new Float32Array(made.byteLength / 2);
    perBlock(from, type, block, what === "minima" ? change[8] : null, floats);
    if (bits === 16) new Uint16Array(made).set(Uint16Array.from(floats, toHalf));
  }
  return new Uint8Array(made);
}

/** Numbers of 8 bits, or of 4, of which the even ones are in the lower halves of bytes. */
function quants(from: Uint8Array, type: number, bits: number, shift: number, made: Uint8Array): void {
  const { bytes, elements, zero, table, numbers } = BLOCKS[type]!;
  const q = new Uint8Array(elements);
  const middle = (1 << (bits - 1)) - shift;
  for (let at = 0, to = 0; at < from.length; at += bytes) {
    numbers(from, at, q);
    for (let i = 0; i < elements; i++) q[i] = (table ? table[q[i]!]! : q[i]! - zero) + middle;
    if (bits === 8) made.set(q, to);
    else for (let i = 0; i < elements; i += 2) made[to + i / 2] = q[i]! | (q[i + 1]! << 4);
    to += (elements * bits) / 8;
  }
}

/** The scale of every `block` elements; with a `shift` the minimum that remains once q is lower by it. */
function perBlock(from: Uint8Array, type: number, block: number, shift: number | null, made: Float32Array): void {
  const { bytes, elements, group, scales } = BLOCKS[type]!;
  const [d, m] = [new Float32Array(elements / group), new Float32Array(elements / group)];
  for (let at = 0, to = 0; at < from.length; at += bytes) {
    scales(from, at, d, m);
    for (let e = 0; e < elements; e += block) {
      const place = Math.floor(e / group);
      made[to++] = shift === null ? d[place]! : Math.fround(d[place]! * shift) + m[place]!;
    }
  }
}
