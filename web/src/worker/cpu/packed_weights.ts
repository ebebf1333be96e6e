// Writes weights into the memory of a program, packed as web/kernels/packed.ts reads them.

import { fromHalf, toHalf } from "../half";
import { BLOCKS, type Files, sourceRow, unpack, type UnpackedWeight } from "../unpacked_weights";
import { type BlockCopy, COPIES } from "./packed_blocks";
import type { WideWeight } from "../wide_weights";

/** A weight of capstan.device.wasm.cpu_program: floats of a data file or made ones, or packed ones of `n` rows and `k`
 * columns. */
export interface CpuWeight {
  address: number;
  bytes: number;
  /** -1 for floats; else 2 times one of Scales, and 1 for numbers in 8 bits instead of 4. */
  form: number;
  n: number;
  k: number;
  floats?: [location: string, offset: number];
  made?: WideWeight | UnpackedWeight;
}

const GROUP = 8;
const BLOCK = 32;

/** See capstan.device.wasm.cpu_program. */
enum Scales {
  Floats,
  Sixteen,
  Halves,
  Centred,
  Bytes,
}

/**
 * The numbers of a row, with signs in 8 bits, and for each block of it a scale and a minimum: a weight is number * scale +
 * minimum.
 */
interface Row {
  q: Uint8Array;
  d: Float32Array;
  m: Float32Array;
}

/** A part of a data file. */
type Place = [location: string, start: number, length: number];

/** The parts of data files for a weight. */
export function placesOf({ bytes, floats, made }: CpuWeight): Place[] {
  if (floats) return [[...floats, bytes]];
  if ("parts" in made!) return made.parts.filter(([, length]) => length).map(([at, length]) => [made.file, at, length]);
  const { n, k, bits, block, halves, packed, scales, zeros } = made as WideWeight;
  const blocks = Math.ceil(k / block);
  const places: Place[] = [
    [...packed, (n * blocks * block * bits) / 8],
    [...scales, (halves ? 2 : 4) * n * blocks],
  ];
  if (zeros) places.push([...zeros, n * Math.ceil((blocks * bits) / 8)]);
  return places;
}

/** Write a weight to its address. */
export function writeWeight(weight: CpuWeight, files: Files, memory: ArrayBufferLike): void {
  const { address, bytes, form, floats, made } = weight;
  if (floats) new Uint8Array(memory, address, bytes).set(files.get(floats[0])!.subarray(floats[1], floats[1] + bytes));
  else if (form < 0) {
    const buffer = new ArrayBuffer(bytes);
    unpack(made as UnpackedWeight, files, buffer);
    new Uint8Array(memory, address, bytes).set(new Uint8Array(buffer));
  } else if ("parts" in made!) packParts(weight, made, files, memory);
  else packWide(weight, made as WideWeight, files, memory);
}

/** Pack the tensors of a GGUF file. */
function packParts(weight: CpuWeight, { file, parts }: UnpackedWeight, files: Files, memory: ArrayBufferLike): void {
  const { k, form } = weight;
  const eight = form & 1;
  const row = emptyRow(weight);
  const write = rowWriter(weight, memory);
  let first = 0;
  for (const [offset, length, , change] of parts) {
    if (change?.[0] !== "unpack") throw new Error(`a packed weight cannot have ${String(change)}`);
    const [, type, , rows, , , , halves] = change;
    const { bytes, elements, group, zero, minima, table, numbers, scales } = BLOCKS[type]!;
    const from = files.get(file)!.subarray(offset, offset + length);
    const copied = COPIES[type];
    if (copied) {
      for (let each = 0; each < rows; each++)
        copyRow(weight, memory, copied, from, sourceRow(each, halves) * (length / rows), first + each);
      first += rows;
      continue;
    }
    const parted = Array.from({ length: k / elements }, (_, i) => ({
      q: row.q.subarray(i * elements, (i + 1) * elements),
      d: row.d.subarray((i * elements) / group, ((i + 1) * elements) / group),
      m: row.m.subarray((i * elements) / group, ((i + 1) * elements) / group),
    }));
    for (let each = 0; each < rows; each++) {
      let at = sourceRow(each, halves) * (length / rows);
      for (const { q, d, m } of parted) {
        numbers(from, at, q);
        scales(from, at, d, m);
        at += bytes;
      }
      if (table) for (let i = 0; i < k; i++) row.q[i] = table[row.q[i]!]!;
      else if (eight && !minima) for (let i = 0; i < k; i++) row.q[i]! -= zero;
      else if (!minima) for (let i = 0; i < row.d.length; i++) row.m[i] = -zero * row.d[i]!;
      write(first + each, row);
    }
    first += rows;
  }
}

function copyRow(
  { address, k }: CpuWeight,
  memory: ArrayBufferLike,
  { bytes, packed, elements, copy }: BlockCopy,
  from: Uint8Array,
  at: number,
  index: number,
): void {
  const size = (k / elements) * packed;
  const group = new Uint8Array(memory, address + Math.floor(index / GROUP) * size, size);
  for (let place = 0; place < size; place += packed, at += bytes) copy(from, at, group, place, index % GROUP);
}

/** Pack the weight of a MatMulNBits. */
function packWide(weight: CpuWeight, wide: WideWeight, files: Files, memory: ArrayBufferLike): void {
  const { n, k, bits, block, halves } = wide;
  const blocks = Math.ceil(k / block);
  const [packed, scaled, zeros] = placesOf(weight).map(([location, start, length]) =>
    files.get(location)!.subarray(start, start + length),
  );
  // A copy, since typed arrays begin at multiples of their elements only.
  const held = scaled!.slice().buffer;
  const scales = halves ? Float32Array.from(new Uint16Array(held), fromHalf) : new Float32Array(held);
  const zeroRow = Math.ceil((blocks * bits) / 8);
  const group = Math.min(block, BLOCK);
  const row = emptyRow(weight);
  const write = rowWriter(weight, memory);
  for (let each = 0; each < n; each++) {
    const source = packed!.subarray((each * blocks * block * bits) / 8);
    if (bits === 8) for (let i = 0; i < k; i++) row.q[i] = source[i]! - 128;
    else
      for (let i = 0; i < k; i += 2) {
        row.q[i] = source[i >> 1]! & 15;
        row.q[i + 1] = source[i >> 1]! >> 4;
      }
    for (let i = 0; i < k / group; i++) {
      const at = Math.floor((i * group) / block);
      const zero = !zeros
        ? bits === 8
          ? 0
          : 8
        : bits === 8
          ? zeros[each * zeroRow + at]! - 128
          : (zeros[each * zeroRow + (at >> 1)]! >> (4 * (at & 1))) & 15;
      const scale = scales[each * blocks + at]!;
      row.d[i] = scale;
      row.m[i] = -zero * scale;
    }
    write(each, row);
  }
}

function emptyRow({ k, form }: CpuWeight): Row {
  const blocks = k / (form >> 1 === Scales.Sixteen ? BLOCK / 2 : BLOCK);
  return { q: new Uint8Array(k), d: new Float32Array(blocks), m: new Float32Array(blocks) };
}

/** Writes one row of a weight into its group, but for Scales.Bytes. */
function rowWriter({ address, k, form }: CpuWeight, memory: ArrayBufferLike): (index: number, row: Row) => void {
  const kind: Scales = form >> 1;
  const eight = form & 1;
  const scales = [64, 128, 32, 16][kind]!;
  const size = scales + (eight ? 256 : 128);
  const parts = kind === Scales.Sixteen ? 2 : 1;
  const bytes = new Uint8Array(memory);
  const [halves, floats] = [new Uint16Array(memory), new Float32Array(memory)];
  return (index, { q, d, m }) => {
    const lane = index % GROUP;
    let at = address + Math.floor(index / GROUP) * (k / BLOCK) * size;
    for (let block = 0, e = 0; block < k / BLOCK; block++, at += size, e += BLOCK) {
      if (kind === Scales.Halves || kind === Scales.Centred) {
        halves[at / 2 + lane] = toHalf(d[block]!);
        if (kind === Scales.Halves) halves[at / 2 + 8 + lane] = toHalf(m[block]!);
      } else
        for (let part = 0; part < parts; part++) {
          floats[at / 4 + 8 * part + lane] = d[block * parts + part]!;
          floats[at / 4 + 8 * (parts + part) + lane] = m[block * parts + part]!;
        }
      const to = at + scales + 4 * lane;
      if (eight)
        for (let i = 0; i < BLOCK; i++) bytes[to + 128 * (i >> 4) + 32 * ((i & 15) >> 2) + (i & 3)] = q[e + i]!;
      else for (let i = 0; i < 16; i++) bytes[to + 32 * (i >> 2) + (i & 3)] = q[e + i]! | (q[e + i + 16]! << 4);
    }
  };
}
