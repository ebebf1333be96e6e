// Makes float32 weights of packed ones for products on the CPU; capstan.graph.wide_products says which, and why.

import { fromHalf } from "./half";

/** The place of a tensor: the name of its data file, and its first byte. */
type Place = [location: string, offset: number];

/** A weight [n, k] to be made of numbers in a few bits, with a scale and a zero point for each block of a row. */
export interface WideWeight {
  location: string;
  n: number;
  k: number;
  bits: 4 | 8;
  block: number;
  /** Whether the scales are float16; else they are float32. */
  halves: boolean;
  packed: Place;
  scales: Place;
  zeros: Place | null;
}

/** Write the bytes of the weight to the start of a buffer: (q - zero) * scale, row after row. */
export function widen(wide: WideWeight, files: ReadonlyMap<string, Uint8Array>, into: ArrayBuffer): void {
  const { n, k, bits, block, halves } = wide;
  const from = ([location, offset]: Place, length: number): Uint8Array =>
    files.get(location)!.subarray(offset, offset + length);
  const blocks = Math.ceil(k / block);
  const packed = from(wide.packed, (n * blocks * block * bits) / 8);
  // A copy, since typed arrays begin at multiples of their elements only.
  const held = from(wide.scales, (halves ? 2 : 4) * n * blocks).slice().buffer;
  const scales = halves ? Float32Array.from(new Uint16Array(held), fromHalf) : new Float32Array(held);
  const zeroRow = Math.ceil((blocks * bits) / 8);
  const zeros = wide.zeros && from(wide.zeros, n * zeroRow);
  const zeroOf = (row: number, at: number): number => {
    if (!zeros) return 1 << (bits - 1);
    if (bits === 8) return zeros[row * zeroRow + at]!;
    return (zeros[row * zeroRow + (at >> 1)]! >> (4 * (at & 1))) & 15;
  };
  const made = new Float32Array(into, 0, n * k);
  const sixteen = new Float32Array(16);
  for (let row = 0; row < n; row++) {
    for (let at = 0; at < blocks; at++) {
      const scale = scales[row * blocks + at]!;
      const zero = zeroOf(row, at);
      const begin = row * k + at * block;
      const end = row * k + Math.min(k, (at + 1) * block);
      let source = ((row * blocks + at) * block * bits) / 8;
      if (bits === 8) {
        for (let i = begin; i < end; i++) made[i] = (packed[source++]! - zero) * scale;
        continue;
      }
      for (let q = 0; q < 16; q++) sixteen[q] = (q - zero) * scale;
      for (let i = begin; i < end; i += 2) {
        const pair = packed[source++]!;
        made[i] = sixteen[pair & 15]!;
        if (i + 1 < end) made[i + 1] = sixteen[pair >> 4]!;
      }
    }
  }
}
