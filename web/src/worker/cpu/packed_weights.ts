// Writes weights into the memory of a program, packed as web/kernels/packed.ts reads them.

import { fromHalf, toHalf } from "../half";
import { type Blocks, BLOCKS, type Files, sourceRow, unpack, type UnpackedWeight } from "../unpacked_weights";
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
/** Elements of K types that share two float16. */
const WHOLE = 256;

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
 * minimum. K types have two float16 for each 256 elements, of which scales and minima are multiples.
 */
interface Row {
  q: Uint8Array;
  d: Float32Array;
  m: Float32Array;
  whole: Uint16Array;
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
  const eight = form & 1 && form >> 1 !== Scales.Bytes;
  const row = emptyRow(weight);
  const write = rowWriter(weight, memory);
  let first = 0;
  for (const [offset, length, , change] of parts) {
    if (change?.[0] !== "unpack") throw new Error(`${String(change)} in a packed weight`);
    const [, type, , rows, , , , halves] = change;
    const kind = BLOCKS[type]!;
    const { bytes, elements, group, zero, minima, table, numbers, scales, halves: places = [] } = kind;
    const from = files.get(file)!.subarray(offset, offset + length);
    const parted = Array.from({ length: k / elements }, (_, i) => ({
      q: row.q.subarray(i * elements, (i + 1) * elements),
      d: row.d.subarray((i * elements) / group, ((i + 1) * elements) / group),
      m: row.m.subarray((i * elements) / group, ((i + 1) * elements) / group),
    }));
    for (let each = 0; each < rows; each++) {
      let at = sourceRow(each, halves) * (length / rows);
      if (kind.numbersAt !== undefined) {
        copyRow(weight, memory, kind, from, at, first + each);
        continue;
      }
      let wholes = 0;
      for (const { q, d, m } of parted) {
        numbers(from, at, q);
        scales(from, at, d, m);
        for (const place of places) row.whole[wholes++] = from[at + place]! | (from[at + place + 1]! << 8);
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

/** Pack a row whose numbers and float16 are as its group has them. */
function copyRow(
  { address, k, form }: CpuWeight,
  memory: ArrayBufferLike,
  { bytes: step, numbersAt }: Blocks,
  from: Uint8Array,
  at: number,
  index: number,
): void {
  const count = form & 1 ? BLOCK : BLOCK / 2;
  const heads = numbersAt! / 2;
  const size = GROUP * (2 * heads + count);
  const bytes = new Uint8Array(memory, address + Math.floor(index / GROUP) * (k / BLOCK) * size, (k / BLOCK) * size);
  const lane = index % GROUP;
  for (let to = 0; to < bytes.length; to += size, at += step) {
    for (let head = 0; head < heads; head++) {
      bytes[to + 16 * head + 2 * lane] = from[at + 2 * head]!;
      bytes[to + 16 * head + 2 * lane + 1] = from[at + 2 * head + 1]!;
    }
    const first = to + 16 * heads + 4 * lane;
    // Four columns of each row are side by side.
    for (let i = 0, into = first, source = at + numbersAt!; i < count; i += 4, into += 4 * GROUP, source += 4) {
      bytes[into] = from[source]!;
      bytes[into + 1] = from[source + 1]!;
      bytes[into + 2] = from[source + 2]!;
      bytes[into + 3] = from[source + 3]!;
    }
  }
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
  const scales = form >> 1;
  const blocks = k / (scales === Scales.Sixteen || (form & 1 && scales === Scales.Bytes) ? BLOCK / 2 : BLOCK);
  const [d, m] = [new Float32Array(blocks), new Float32Array(blocks)];
  return { q: new Uint8Array(k), d, m, whole: new Uint16Array((2 * k) / WHOLE) };
}

/** Writes one row of a weight into its group. */
function rowWriter({ address, k, form }: CpuWeight, memory: ArrayBufferLike): (index: number, row: Row) => void {
  const kind = form >> 1;
  const eight = form & 1;
  const whole = kind === Scales.Bytes ? (eight ? 1 : 2) : 0;
  const scales = [64, 128, 32, 16, 16][kind]!;
  const size = scales + (eight ? 256 : 128);
  const groupBytes = (k / BLOCK) * size + (k / WHOLE) * 16 * whole;
  const bytes = new Uint8Array(memory);
  const [halves, floats] = [new Uint16Array(memory), new Float32Array(memory)];
  const writeScales: ((at: number, lane: number, block: number, row: Row) => void)[] = [
    (at, lane, block, { d, m }) => {
      floats[at / 4 + lane] = d[block]!;
      floats[at / 4 + 8 + lane] = m[block]!;
    },
    (at, lane, block, { d, m }) => {
      for (let part = 0; part < 2; part++) {
        floats[at / 4 + 8 * part + lane] = d[2 * block + part]!;
        floats[at / 4 + 16 + 8 * part + lane] = m[2 * block + part]!;
      }
    },
    (at, lane, block, { d, m }) => {
      halves[at / 2 + lane] = toHalf(d[block]!);
      halves[at / 2 + 8 + lane] = toHalf(m[block]!);
    },
    (at, lane, block, { d }) => void (halves[at / 2 + lane] = toHalf(d[block]!)),
    (at, lane, block, { d, m, whole: of }) => {
      const first = whole * Math.floor((block * BLOCK) / WHOLE);
      const factors = eight
        ? [fromHalf(of[first]!), fromHalf(of[first]!)]
        : [fromHalf(of[first]!), fromHalf(of[first + 1]!)];
      const given = eight ? [d[2 * block]!, d[2 * block + 1]!] : [d[block]!, -m[block]!];
      for (let part = 0; part < 2; part++) bytes[at + 8 * part + lane] = Math.round(given[part]! / factors[part]!);
    },
  ];
  const write = writeScales[kind]!;
  return (index, row) => {
    const lane = index % GROUP;
    const { q } = row;
    let at = address + Math.floor(index / GROUP) * groupBytes;
    for (let block = 0, e = 0; block < k / BLOCK; block++, at += size, e += BLOCK) {
      if (whole && e % WHOLE === 0)
        for (let part = 0; part < whole; part++, at += 16)
          // Minima are subtracted.
          halves[at / 2 + lane] = row.whole[(e / WHOLE) * whole + part]! ^ (part << 15);
      write(at, lane, block, row);
      const to = at + scales + 4 * lane;
      if (eight)
        for (let i = 0; i < BLOCK; i++) bytes[to + 128 * (i >> 4) + 32 * ((i & 15) >> 2) + (i & 3)] = q[e + i]!;
      else for (let i = 0; i < 16; i++) bytes[to + 32 * (i >> 2) + (i & 3)] = q[e + i]! | (q[e + i + 16]! << 4);
    }
  };
}
