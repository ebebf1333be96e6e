// Rotary tables that a graph computes from constants: capstan.graph.Angles.

import { toHalf } from "./half";

export type Angles = [
  kind: "angles",
  wave: "cos" | "sin",
  rows: number,
  frequencies: string,
  scale: number,
  bits: 16 | 32,
];

/** The bytes of a table [rows, frequencies]. */
export function angleTable([, wave, rows, text, scale, bits]: Angles): Uint8Array<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const frequencies = new Float32Array(bytes.buffer);
  const { length } = frequencies;
  const table = bits === 16 ? new Uint16Array(rows * length) : new Float32Array(rows * length);
  const [compute, factor] = [Math[wave], Math.fround(scale)];
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < length; column++) {
      const value = Math.fround(Math.fround(compute(Math.fround(row * frequencies[column]!))) * factor);
      table[row * length + column] = bits === 16 ? toHalf(value) : value;
    }
  return new Uint8Array(table.buffer);
}
