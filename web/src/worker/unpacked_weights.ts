// Makes float32 weights of the tensors of a GGUF file, for the CPU; capstan.graph.unpacked_weights says which, and
// capstan.device.reference.unpacked defines the result, bit for bit.

import type { Change } from "./gpu/rearranger";
import { angleTable } from "./angle_tables";
import { HALVES, toHalf } from "./half";

/** A weight: `bytes` of float32, or of float16, made of parts of a file. */
export interface UnpackedWeight {
  location: string;
  bytes: number;
  file: string;
  /** Each begins `step` bytes after the start of the one before. */
  parts: [offset: number, length: number, step: number, change: Change | null][];
}

/** Bytes of data files, by the file's name. */
export interface Files {
  get: (location: string) => { subarray: (start: number, end: number) => Uint8Array } | undefined;
}

/** A type of tensors in blocks of `bytes`: an element is `d * (q - zero)`, or `d * (q - zero) + m`. */
export interface Blocks {
  bytes: number;
  elements: number;
  /** Elements that share d and m. */
  group: number;
  zero: number;
  minima?: boolean;
  /** The q of each stored number; without it they are the stored numbers. */
  table?: Int8Array;
  /** Write the stored numbers of the block at a byte. */
  numbers: (from: Uint8Array, at: number, q: Uint8Array) => void;
  /** Write d of each group, and m. */
  scales: (from: Uint8Array, at: number, d: Float32Array, m: Float32Array) => void;
}

const IQ4 = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
/** Twice the values of a float of 4 bits. */
const FP4 = Int8Array.of(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

function half(from: Uint8Array, at: number): number {
  return HALVES[from[at]! | (from[at + 1]! << 8)]!;
}

/** The two halves of bytes: in each group of `width` bytes the lower ones of all, then the higher ones. */
function nibbles(from: Uint8Array, at: number, groups: number, width: number, q: Uint8Array): void {
  for (let group = 0, e = 0; group < groups; group++, at += width, e += 2 * width)
    for (let i = 0; i < width; i++) {
      const pair = from[at + i]!;
      q[e + i] = pair & 15;
      q[e + width + i] = pair >> 4;
    }
}

/**
 * Add to q, from bit `to` on, those of `groups * width` bytes: in each group come the lowest `bits` of all its bytes, then
 * the next ones.
 */
function addBits(
  from: Uint8Array,
  at: number,
  groups: number,
  width: number,
  bits: number,
  q: Uint8Array,
  to: number,
): void {
  const mask = (1 << bits) - 1;
  for (let group = 0, e = 0; group < groups; group++, at += width)
    for (let shift = 0; shift < 8; shift += bits, e += width)
      for (let i = 0; i < width; i++) q[e + i]! |= ((from[at + i]! >> shift) & mask) << to;
}

/** Set bit 4 of q to the bits of four bytes, the lowest first. */
function fifthBits(from: Uint8Array, at: number, q: Uint8Array): void {
  for (let e = 0; e < 32; e++) q[e]! |= ((from[at + (e >> 3)]! >> (e & 7)) & 1) << 4;
}

/** The 8 scales and the 8 minima of Q4_K and Q5_K, in bytes 4 to 15. */
function sixBits(from: Uint8Array, at: number, d: Float32Array, m: Float32Array): void {
  const [scale, minimum] = [half(from, at), half(from, at + 2)];
  for (let j = 0; j < 4; j++) {
    const [low, below, both] = [from[at + 4 + j]!, from[at + 8 + j]!, from[at + 12 + j]!];
    d[j] = scale * (low & 63);
    m[j] = -minimum * (below & 63);
    d[j + 4] = scale * ((both & 15) | ((low >> 2) & 48));
    m[j + 4] = -minimum * ((both >> 4) | ((below >> 2) & 48));
  }
}

/** The numbers that types have in a file. */
export const TYPES = {
  Q4_0: 2,
  Q4_1: 3,
  Q5_0: 6,
  Q5_1: 7,
  Q8_0: 8,
  Q2_K: 10,
  Q3_K: 11,
  Q4_K: 12,
  Q5_K: 13,
  Q6_K: 14,
  IQ4_NL: 20,
  IQ4_XS: 23,
  MXFP4: 39,
};
const { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 } = TYPES;

/** Types whose 32 elements share d, the first number of a block, and m, the second one. */
const SMALL = { elements: 32, group: 32 };
const oneScale: Blocks["scales"] = (from, at, d) => void (d[0] = half(from, at));
const oneMinimum: Blocks["scales"] = (from, at, d, m) => void ([d[0], m[0]] = [half(from, at), half(from, at + 2)]);
/** Types of 256 elements, of which 32 or 16 share them. */
const OF_32 = { elements: 256, group: 32 };
const OF_16 = { elements: 256, group: 16 };

export const BLOCKS: Record<number, Blocks> = {
  [Q4_0]: {
    ...SMALL,
    bytes: 18,
    zero: 8,

    scales: oneScale,
    numbers: (from, at, q) => nibbles(from, at + 2, 1, 16, q),
  },
  [Q4_1]: {
    ...SMALL,
    bytes: 20,
    zero: 0,
    minima: true,
    scales: oneMinimum,
    numbers: (from, at, q) => nibbles(from, at + 4, 1, 16, q),
  },
  [Q8_0]: {
    ...SMALL,
    bytes: 34,
    zero: 128,

    scales: oneScale,
    numbers: (from, at, q) => {
      for (let i = 0; i < 32; i++) q[i] = from[at + 2 + i]! ^ 128;
    },
  },
  [Q5_0]: {
    ...SMALL,
    bytes: 22,
    zero: 16,
    scales: oneScale,
    numbers: (from, at, q) => {
      nibbles(from, at + 6, 1, 16, q);
      fifthBits(from, at + 2, q);
    },
  },
  [Q5_1]: {
    ...SMALL,
    bytes: 24,
    zero: 0,
    minima: true,
    scales: oneMinimum,
    numbers: (from, at, q) => {
      nibbles(from, at + 8, 1, 16, q);
      fifthBits(from, at + 4, q);
    },
  },
  [Q2_K]: {
    ...OF_16,
    bytes: 84,
    zero: 0,
    minima: true,
    numbers: (from, at, q) => addBits(from, at + 16, 2, 32, 2, q.fill(0), 0),
    scales: (from, at, d, m) => {
      const [scale, minimum] = [half(from, at + 80), half(from, at + 82)];
      for (let j = 0; j < 16; j++) {
        d[j] = scale * (from[at + j]! & 15);
        m[j] = -minimum * (from[at + j]! >> 4);
      }
    },
  },
  [Q3_K]: {
    ...OF_16,
    bytes: 110,
    zero: 4,
    numbers: (from, at, q) => {
      addBits(from, at + 32, 2, 32, 2, q.fill(0), 0);
      addBits(from, at, 1, 32, 1, q, 2);
    },
    scales: (from, at, d) => {
      const scale = half(from, at + 108);
      for (let j = 0; j < 16; j++) {
        const low = (from[at + 96 + (j & 7)]! >> (4 * (j >> 3))) & 15;
        const high = (from[at + 104 + (j & 3)]! >> (2 * (j >> 2))) & 3;
        d[j] = scale * ((low | (high << 4)) - 32);
      }
    },
  },
  [Q4_K]: {
    ...OF_32,
    bytes: 144,
    zero: 0,
    minima: true,
    scales: sixBits,
    numbers: (from, at, q) => nibbles(from, at + 16, 4, 32, q),
  },
  [Q5_K]: {
    ...OF_32,
    bytes: 176,
    zero: 0,
    minima: true,
    scales: sixBits,
    numbers: (from, at, q) => {
      nibbles(from, at + 48, 4, 32, q);
      addBits(from, at + 16, 1, 32, 1, q, 4);
    },
  },
  [Q6_K]: {
    ...OF_16,
    bytes: 210,
    zero: 32,
    numbers: (from, at, q) => {
      nibbles(from, at, 2, 64, q);
      addBits(from, at + 128, 2, 32, 2, q, 4);
    },
    scales: (from, at, d) => {
      const scale = half(from, at + 208);
      for (let j = 0; j < 16; j++) d[j] = scale * ((from[at + 192 + j]! << 24) >> 24);
    },
  },
  [IQ4_NL]: {
    ...SMALL,
    bytes: 18,
    zero: 0,
    table: IQ4,
    scales: oneScale,
    numbers: (from, at, q) => nibbles(from, at + 2, 1, 16, q),
  },
  [IQ4_XS]: {
    ...OF_32,
    bytes: 136,
    zero: 0,
    table: IQ4,
    numbers: (from, at, q) => nibbles(from, at + 8, 8, 16, q),
    scales: (from, at, d) => {
      const scale = half(from, at);
      for (let j = 0; j < 8; j++) {
        const low = (from[at + 4 + (j >> 1)]! >> (4 * (j & 1))) & 15;
        const high = (from[at + 2 + (j >> 2)]! >> (2 * (j & 3))) & 3;
        d[j] = scale * ((low | (high << 4)) - 32);
      }
    },
  },
  [MXFP4]: {
    ...SMALL,
    bytes: 17,
    zero: 0,
    table: FP4,
    numbers: (from, at, q) => nibbles(from, at + 1, 1, 16, q),
    scales: (from, at, d) => void (d[0] = 2 ** (from[at]! - 128)),
  },
};

/** Reads a row of this number of bytes at a byte, into `made` from an element on. */
type ReadRow = (from: Uint8Array, at: number, length: number, made: Float32Array, to: number) => void;

/** The commonest types, without numbers in between: in two thirds of the time. */
const ROWS: Record<number, ReadRow> = {
  [Q4_0]: (from, begin, length, made, to) => {
    for (let at = begin; at < begin + length; at += 18, to += 32) {
      const d = half(from, at);
      for (let i = 0; i < 16; i++) {
        const pair = from[at + 2 + i]!;
        made[to + i] = ((pair & 15) - 8) * d;
        made[to + 16 + i] = ((pair >> 4) - 8) * d;
      }
    }
  },
  [Q4_1]: (from, begin, length, made, to) => {
    for (let at = begin; at < begin + length; at += 20, to += 32) {
      const d = half(from, at);
      const m = half(from, at + 2);
      for (let i = 0; i < 16; i++) {
        const pair = from[at + 4 + i]!;
        made[to + i] = Math.fround((pair & 15) * d) + m;
        made[to + 16 + i] = Math.fround((pair >> 4) * d) + m;
      }
    }
  },
  [Q8_0]: (from, begin, length, made, to) => {
    for (let at = begin; at < begin + length; at += 34, to += 32) {
      const d = half(from, at);
      for (let i = 0; i < 32; i++) made[to + i] = ((from[at + 2 + i]! << 24) >> 24) * d;
    }
  },
};

/** Types without blocks. */
const F32 = 0;
const F16 = 1;
const BF16 = 30;
const WIDTH: Record<number, number> = { [F32]: 4, [F16]: 2, [BF16]: 2 };

/** Write the bytes of a weight to the start of `made`, of which nothing else is kept. */
export function unpack(weight: UnpackedWeight, files: Files, made: ArrayBuffer): void {
  const file = files.get(weight.file)!;
  let begin = 0;
  for (const [offset, length, step, change] of weight.parts) {
    const from = file.subarray(offset, offset + length);
    if (!change) new Uint8Array(made).set(from, begin);
    else if (change[0] === "angles") new Uint8Array(made).set(angleTable(change), begin);
    else if (change[0] !== "unpack" || change[2] !== "values" || change[9] || (change[10] && change[5] !== 32))
      throw new Error(`the CPU cannot rearrange weights by ${change.join()}; use device='webgpu'`);
    else {
      const [, type, , rows, columns, bits, , halves, , , between] = change;
      const apart = columns + between / 4;
      const count = (rows - 1) * apart + columns;
      const values = bits === 32 ? new Float32Array(made, begin, count) : new Float32Array(count);
      readRows(type, from, rows, apart, halves, values);
      if (bits === 16) new Uint16Array(made, begin, values.length).set(Uint16Array.from(values, toHalf));
    }
    begin += step;
  }
}

/**
 * The rows of a tensor, `apart` elements from one to the next; for `halves`, rows of a head, one half of these after
 * the other.
 */
function readRows(
  type: number,
  from: Uint8Array,
  rows: number,
  apart: number,
  halves: number,
  made: Float32Array,
): void {
  const rowBytes = from.length / rows;
  const read = ROWS[type] ?? (BLOCKS[type] ? ofBlocks(BLOCKS[type]) : floats(type));
  for (let row = 0; row < rows; row++) {
    read(from, sourceRow(row, halves) * rowBytes, rowBytes, made, row * apart);
  }
}

/** The number of a row in its file; for `halves`, rows of a head are there in turn from both halves. */
export function sourceRow(row: number, halves: number): number {
  if (!halves) return row;
  const inside = row % halves;
  return row - inside + ((inside % (halves / 2)) * 2 + Math.floor(inside / (halves / 2)));
}

function ofBlocks({ bytes, elements, group, zero, minima, table, numbers, scales }: Blocks): ReadRow {
  const q = new Uint8Array(elements);
  const [d, m] = [new Float32Array(elements / group), new Float32Array(elements / group)];
  return (from, begin, length, made, to) => {
    for (let at = begin; at < begin + length; at += bytes) {
      numbers(from, at, q);
      scales(from, at, d, m);
      for (let g = 0, e = 0; e < elements; g++, e += group, to += group) {
        const scale = d[g]!;
        const minimum = m[g]!;
        if (minima) for (let i = 0; i < group; i++) made[to + i] = Math.fround(q[e + i]! * scale) + minimum;
        else if (table) for (let i = 0; i < group; i++) made[to + i] = table[q[e + i]!]! * scale;
        else for (let i = 0; i < group; i++) made[to + i] = (q[e + i]! - zero) * scale;
      }
    }
  };
}

function floats(type: number): ReadRow {
  const width = WIDTH[type];
  if (!width) throw new Error(`tensors of type ${type} have no values`);
  return (from, begin, length, made, to) => {
    const count = length / width;
    if (type === F16) {
      for (let i = 0; i < count; i++) made[to + i] = half(from, begin + 2 * i);
      return;
    }
    const bits = new Uint8Array(made.buffer, made.byteOffset + 4 * to, 4 * count);
    if (type === F32) bits.set(from.subarray(begin, begin + length));
    else
      for (let i = 0; i < count; i++) {
        bits[4 * i] = bits[4 * i + 1] = 0;
        bits[4 * i + 2] = from[begin + 2 * i]!;
        bits[4 * i + 3] = from[begin + 2 * i + 1]!;
      }
  };
}
