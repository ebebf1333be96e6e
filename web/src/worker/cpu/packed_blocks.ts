// Copies blocks of GGUF files into groups of 8 rows, as web/kernels/packed.ts reads them, without the numbers in between.

import { TYPES } from "../unpacked_weights";

/** Copy a block of a file for a row to the start of its group, whose place `lane` is the row's. */
type CopyBlock = (from: Uint8Array, at: number, to: Uint8Array, place: number, lane: number) => void;

export interface BlockCopy {
  /** Bytes of a block in the file, and in a group. */
  bytes: number;
  packed: number;
  elements: number;
  copy: CopyBlock;
}

/** Types whose numbers lie in the file as in a group, after this number of float16. */
function asInFile(halves: number, count: number): BlockCopy {
  const copy: CopyBlock = (from, at, to, place, lane) => {
    for (let each = 0; each < halves; each++) copyHalf(from, at + 2 * each, to, place + 16 * each + 2 * lane, 0);
    let into = place + 16 * halves + 4 * lane;
    // Four columns of each row are side by side.
    for (let source = at + 2 * halves, end = source + count; source < end; source += 4, into += 32) {
      to[into] = from[source]!;
      to[into + 1] = from[source + 1]!;
      to[into + 2] = from[source + 2]!;
      to[into + 3] = from[source + 3]!;
    }
  };
  return { bytes: 2 * halves + count, packed: 8 * (2 * halves + count), elements: 32, copy };
}

function copyHalf(from: Uint8Array, at: number, to: Uint8Array, place: number, sign: number): void {
  to[place] = from[at]!;
  to[place + 1] = from[at + 1]! ^ sign;
}

const Q4_K: CopyBlock = (from, at, to, place, lane) => {
  copyHalf(from, at, to, place + 2 * lane, 0);
  // Minima are subtracted.
  copyHalf(from, at + 2, to, place + 16 + 2 * lane, 128);
  for (let j = 0; j < 4; j++) {
    const [low, below, both] = [from[at + 4 + j]!, from[at + 8 + j]!, from[at + 12 + j]!];
    const block = place + 32 + 144 * j + lane;
    to[block] = low & 63;
    to[block + 8] = below & 63;
    to[block + 4 * 144] = (both & 15) | ((low >> 2) & 48);
    to[block + 4 * 144 + 8] = (both >> 4) | ((below >> 2) & 48);
  }
  for (let pair = 0; pair < 4; pair++) {
    const source = at + 16 + 32 * pair;
    const into = place + 32 + 288 * pair + 16 + 4 * lane;
    for (let i = 0; i < 16; i++) {
      const [first, second] = [from[source + i]!, from[source + 16 + i]!];
      const byte = into + 8 * (i & 12) + (i & 3);
      to[byte] = (first & 15) | ((second & 15) << 4);
      to[byte + 144] = (first >> 4) | (second & 240);
    }
  }
};

const Q6_K: CopyBlock = (from, at, to, place, lane) => {
  copyHalf(from, at + 208, to, place + 2 * lane, 0);
  for (let block = 0; block < 8; block++) {
    const into = place + 16 + 272 * block;
    for (let half = 0; half < 2; half++) to[into + 8 * half + lane] = from[at + 192 + 2 * block + half]!;
    const low = at + 64 * (block >> 2) + 32 * (block & 1);
    const high = at + 128 + 32 * (block >> 2);
    const [lowShift, highShift] = [block & 2 ? 4 : 0, 2 * (block & 3)];
    for (let i = 0; i < 32; i++) {
      const number = ((from[low + i]! >> lowShift) & 15) | (((from[high + i]! >> highShift) & 3) << 4);
      to[into + 16 + 128 * (i >> 4) + 8 * (i & 12) + 4 * lane + (i & 3)] = number;
    }
  }
};

/** By the number of a type in a file. */
export const COPIES: Readonly<Record<number, BlockCopy>> = {
  [TYPES.Q4_0]: asInFile(1, 16),
  [TYPES.Q4_1]: asInFile(2, 16),
  [TYPES.Q8_0]: asInFile(1, 32),
  [TYPES.Q4_K]: { bytes: 144, packed: 1184, elements: 256, copy: Q4_K },
  [TYPES.Q6_K]: { bytes: 210, packed: 2192, elements: 256, copy: Q6_K },
};
