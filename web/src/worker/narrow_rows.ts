// Rows of caches in fewer bits, as they are saved: blocks of 32 numbers of a GGUF file's type.
// capstan.device.reference.narrowed defines the result, byte for byte.

import { HALVES, toHalf } from "./half";
import { TYPES, unpack } from "./unpacked_weights";

const BLOCK = 32;
/** For each number of bits: the type, and the bytes of a block. */
const KINDS: Record<number, [type: number, bytes: number]> = { 8: [TYPES.Q8_0, 34], 4: [TYPES.Q4_1, 20] };

/** Blocks of float16 (`width` 16) or float32 numbers. */
export function narrowRows(rows: Uint8Array<ArrayBuffer>, width: number, bits: number): Uint8Array<ArrayBuffer> {
  const numbers = floats(rows, width);
  const count = numbers.length / BLOCK;
  const made = new Uint8Array(count * KINDS[bits]![1]);
  const write = bits === 8 ? eightBits : fourBits;
  for (let block = 0; block < count; block++) write(numbers, block * BLOCK, made, block * KINDS[bits]![1]);
  return made;
}

/** The numbers of blocks. */
export function widenRows(rows: Uint8Array<ArrayBuffer>, width: number, bits: number): Uint8Array<ArrayBuffer> {
  const [type, bytes] = KINDS[bits]!;
  const count = (rows.length / bytes) * BLOCK;
  const size = (count * width) / 8;
  const made = new ArrayBuffer(size);
  const change = ["unpack", type, "values", 1, count, width, 1, 0, 0, 0, 0] as const;
  const weight = { location: "", bytes: size, file: "", parts: [[0, rows.length, size, [...change]]] };
  unpack(weight as Parameters<typeof unpack>[0], { get: () => rows }, made);
  return new Uint8Array(made);
}

function floats(rows: Uint8Array<ArrayBuffer>, width: number): Float32Array {
  // A copy, since typed arrays begin at multiples of their elements only.
  const { buffer } = rows.slice();
  if (width === 32) return new Float32Array(buffer);
  const halves = new Uint16Array(buffer);
  const made = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) made[i] = HALVES[halves[i]!]!;
  return made;
}

/** Write a float16 to a byte; returns its value. */
function half(value: number, made: Uint8Array, at: number): number {
  const bits = toHalf(value);
  made[at] = bits & 255;
  made[at + 1] = bits >> 8;
  return HALVES[bits]!;
}

/** The whole multiple of d that is nearest to a number, between two limits. */
function nearest(number: number, d: number, least: number, most: number): number {
  return d === 0 ? 0 : Math.max(least, Math.min(most, Math.floor(number / d + 0.5)));
}

function eightBits(numbers: Float32Array, from: number, made: Uint8Array, at: number): void {
  let largest = 0;
  for (let i = from; i < from + BLOCK; i++) largest = Math.max(largest, Math.abs(numbers[i]!));
  const d = half(largest / 127, made, at);
  for (let i = 0; i < BLOCK; i++) made[at + 2 + i] = nearest(numbers[from + i]!, d, -127, 127);
}

function fourBits(numbers: Float32Array, from: number, made: Uint8Array, at: number): void {
  let [least, most] = [Infinity, -Infinity];
  for (let i = from; i < from + BLOCK; i++) {
    least = Math.min(least, numbers[i]!);
    most = Math.max(most, numbers[i]!);
  }
  const d = half((most - least) / 15, made, at);
  const m = half(least, made, at + 2);
  const q = (i: number): number => nearest(numbers[from + i]! - m, d, 0, 15);
  for (let i = 0; i < BLOCK / 2; i++) made[at + 4 + i] = q(i) | (q(i + BLOCK / 2) << 4);
}
