// Products by packed weights: 8 rows of a weight at a time, activations in 8 bits.
//
// A group of 8 rows has for each 32 columns: scales, minima (8 rows for each block of the 32 columns), then the q of the
// weights. A vector has 4 rows in its lanes, 4 columns in the bytes of a lane; two vectors are the 8 rows. In 4 bits a byte
// has column c in its lower half and c + 16 in its upper one; in 8 bits, which have signs, the vectors of columns 0 to 15
// come first. The tags of the functions' types: of Eight u8 for true, u16 for false; of Scales u8 for blocks of 16 columns
// in float32, u16 for blocks of 32 in float16, u32 for blocks of 32 in float32.

import { multiplyAdd } from "./arithmetic";

const GROUP: i32 = 8;

/**
 * One of two sums in 16 bits of products of 8 bits and 4, which have room for 8 steps: with relaxed SIMD one for pairs of
 * columns, else one for the first 8 bytes. V8's first compiler computes the relaxed product that adds in 32 bits wrongly.
 */
function first(a: v128, w: v128, sum: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return i16x8.add(sum, i16x8.relaxed_dot_i8x16_i7x16_s(a, w));
  return i16x8.add(sum, i16x8.extmul_low_i8x16_s(a, w));
}

function second(a: v128, w: v128, sum: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return sum;
  return i16x8.add(sum, i16x8.extmul_high_i8x16_s(a, w));
}

/** The sums of the 4 rows. */
function total(low: v128, high: v128): v128 {
  const l = i32x4.extadd_pairwise_i16x8_s(low);
  return ASC_FEATURE_RELAXED_SIMD ? l : pairs(l, i32x4.extadd_pairwise_i16x8_s(high));
}

/** The sums of neighbours. */
function pairs(a: v128, b: v128): v128 {
  return i32x4.add(v128.shuffle<i32>(a, b, 0, 2, 4, 6), v128.shuffle<i32>(a, b, 1, 3, 5, 7));
}

/** sum + numbers * activations' scale * weights' scales */
function scaled(numbers: v128, d: v128, scales: v128, sum: v128): v128 {
  return multiplyAdd(f32x4.mul(f32x4.convert_i32x4_s(numbers), d), scales, sum);
}

/** 2 to the power of 112: the exponents of float32 are by so much larger than those of float16. */
const SMALLER: f32 = 5.192296858534828e33;

/** Four scales or minima. */
function four<Scales>(at: usize): v128 {
  if (sizeof<Scales>() != 2) return v128.load(at);
  const bits = v128.and(i32x4.shl(v128.load_ext<i16>(at), 13), i32x4.splat(0x8fffffff));
  return f32x4.mul(bits, f32x4.splat(SMALLER));
}

/** One of them, by its number. */
function one<Scales>(at: usize, number: usize): f32 {
  if (sizeof<Scales>() != 2) return load<f32>(at + (number << 2));
  return reinterpret<f32>(((<i32>load<i16>(at + (number << 1))) << 13) & 0x8fffffff) * SMALLER;
}

/** The bytes of four of them. */
function fourBytes<Scales>(): usize {
  return sizeof<Scales>() == 2 ? 8 : 16;
}

/** The bytes of those of a group for 32 columns. */
function scaleBytes<Scales>(): usize {
  return (sizeof<Scales>() == 1 ? 8 : 4) * fourBytes<Scales>();
}

/** The bytes of a group for 32 columns. */
function packedBytes<Eight, Scales>(): usize {
  return scaleBytes<Scales>() + (sizeof<Eight>() == 1 ? 256 : 128);
}

/** The same of 4 bits: y gets the products of the row of activations at q (operations.ts, quantize) and 8 rows at w. */
function rowOfFour<Scales>(w: usize, q: usize, y: usize, k: i32): void {
  const low = i8x16.splat(15);
  const blocks: usize = k >> 5;
  let p = w;
  let a = q;
  let scale = q + k;
  let sum = scale + blocks * 4;
  let halves = sum + blocks * 4;
  const scales = scaleBytes<Scales>();
  const end = w + blocks * packedBytes<u16, Scales>();
  const size = fourBytes<Scales>();
  let f0 = f32x4.splat(0);
  let f1 = f32x4.splat(0);
  while (p < end) {
    // s: the first 16 columns, t: the others.
    let s0 = i32x4.splat(0),
      s1 = s0,
      s2 = s0,
      s3 = s0,
      t0 = s0,
      t1 = s0,
      t2 = s0,
      t3 = s0;
    for (let j: usize = 0; j < 4; j++) {
      const al = v128.load32_splat(a + (j << 2));
      const ah = v128.load32_splat(a + (j << 2), 16);
      const at = p + scales + (j << 5);
      const w0 = v128.load(at);
      const w1 = v128.load(at, 16);
      s0 = first(al, v128.and(w0, low), s0);
      s2 = second(al, v128.and(w0, low), s2);
      s1 = first(al, v128.and(w1, low), s1);
      s3 = second(al, v128.and(w1, low), s3);
      t0 = first(ah, v128.shr<u8>(w0, 4), t0);
      t2 = second(ah, v128.shr<u8>(w0, 4), t2);
      t1 = first(ah, v128.shr<u8>(w1, 4), t1);
      t3 = second(ah, v128.shr<u8>(w1, 4), t3);
    }
    const d = v128.load32_splat(scale);
    if (sizeof<Scales>() == 1) {
      f0 = scaled(total(s0, s2), d, v128.load(p), f0);
      f1 = scaled(total(s1, s3), d, v128.load(p, 16), f1);
      f0 = scaled(total(t0, t2), d, v128.load(p, 32), f0);
      f1 = scaled(total(t1, t3), d, v128.load(p, 48), f1);
      const ml = v128.load32_splat(halves);
      const mh = v128.load32_splat(halves, 4);
      f0 = multiplyAdd(mh, v128.load(p, 96), multiplyAdd(ml, v128.load(p, 64), f0));
      f1 = multiplyAdd(mh, v128.load(p, 112), multiplyAdd(ml, v128.load(p, 80), f1));
    } else {
      // Sums of 16 bits have room for 8 products, so that both halves go into one.
      const m = v128.load32_splat(sum);
      f0 = scaled(total(i16x8.add(s0, t0), i16x8.add(s2, t2)), d, four<Scales>(p), f0);
      f1 = scaled(total(i16x8.add(s1, t1), i16x8.add(s3, t3)), d, four<Scales>(p + size), f1);
      f0 = multiplyAdd(m, four<Scales>(p + 2 * size), f0);
      f1 = multiplyAdd(m, four<Scales>(p + 3 * size), f1);
    }
    p += packedBytes<u16, Scales>();
    a += 32;
    scale += 4;
    sum += 4;
    halves += 8;
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}

/** The same of 8 bits, whose products are made in 16 bits. */
function rowOfEight<Scales>(w: usize, q: usize, y: usize, k: i32): void {
  const blocks: usize = k >> 5;
  let p = w;
  let a = q;
  let scale = q + k;
  let sum = scale + blocks * 4;
  let halves = sum + blocks * 4;
  const scales = scaleBytes<Scales>();
  const end = w + blocks * packedBytes<u8, Scales>();
  const size = fourBytes<Scales>();
  let f0 = f32x4.splat(0);
  let f1 = f32x4.splat(0);
  while (p < end) {
    const d = v128.load32_splat(scale);
    let s0 = i32x4.splat(0),
      s1 = s0,
      s2 = s0,
      s3 = s0;
    for (let j: usize = 0; j < 8; j++) {
      const four = i16x8.extend_low_i8x16_s(v128.load32_splat(a + (j << 2)));
      const at = p + scales + (j << 5);
      const w0 = v128.load(at);
      const w1 = v128.load(at, 16);
      s0 = i32x4.add(s0, i32x4.dot_i16x8_s(four, i16x8.extend_low_i8x16_s(w0)));
      s1 = i32x4.add(s1, i32x4.dot_i16x8_s(four, i16x8.extend_high_i8x16_s(w0)));
      s2 = i32x4.add(s2, i32x4.dot_i16x8_s(four, i16x8.extend_low_i8x16_s(w1)));
      s3 = i32x4.add(s3, i32x4.dot_i16x8_s(four, i16x8.extend_high_i8x16_s(w1)));
      if (sizeof<Scales>() == 1 && j == 3) {
        f0 = scaled(pairs(s0, s1), d, v128.load(p), f0);
        f1 = scaled(pairs(s2, s3), d, v128.load(p, 16), f1);
        s0 = s1 = s2 = s3 = i32x4.splat(0);
      }
    }
    if (sizeof<Scales>() == 1) {
      f0 = scaled(pairs(s0, s1), d, v128.load(p, 32), f0);
      f1 = scaled(pairs(s2, s3), d, v128.load(p, 48), f1);
      const ml = v128.load32_splat(halves);
      const mh = v128.load32_splat(halves, 4);
      f0 = multiplyAdd(mh, v128.load(p, 96), multiplyAdd(ml, v128.load(p, 64), f0));
      f1 = multiplyAdd(mh, v128.load(p, 112), multiplyAdd(ml, v128.load(p, 80), f1));
    } else {
      const m = v128.load32_splat(sum);
      f0 = multiplyAdd(m, four<Scales>(p + 2 * size), scaled(pairs(s0, s1), d, four<Scales>(p), f0));
      f1 = multiplyAdd(m, four<Scales>(p + 3 * size), scaled(pairs(s2, s3), d, four<Scales>(p + size), f1));
    }
    p += packedBytes<u8, Scales>();
    a += 32;
    scale += 4;
    sum += 4;
    halves += 8;
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}

function product<Eight, Scales>(
  w: usize,
  q: usize,
  qRow: usize,
  y: usize,
  yRow: usize,
  k: i32,
  begin: i32,
  end: i32,
  rows: i32,
): void {
  const size = <usize>(k >> 5) * packedBytes<Eight, Scales>();
  for (let g = begin; g < end; g++)
    for (let row = 0; row < rows; row++)
      if (sizeof<Eight>() == 1)
        rowOfEight<Scales>(w + <usize>g * size, q + <usize>row * qRow, y + <usize>row * yRow + ((<usize>g) << 5), k);
      else rowOfFour<Scales>(w + <usize>g * size, q + <usize>row * qRow, y + <usize>row * yRow + ((<usize>g) << 5), k);
}

/** Products of so many rows of activations by some groups of a weight; form: 1 for 8 bits, with 2 for blocks of 16 or 4 for
 * scales in float16. */
export function products(
  form: i32,
  w: usize,
  q: usize,
  qRow: usize,
  y: usize,
  yRow: usize,
  k: i32,
  begin: i32,
  end: i32,
  rows: i32,
): void {
  if (form == 0) product<u16, u32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 1) product<u8, u32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 2) product<u16, u8>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 3) product<u8, u8>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 4) product<u16, u16>(w, q, qRow, y, yRow, k, begin, end, rows);
  else product<u8, u16>(w, q, qRow, y, yRow, k, begin, end, rows);
}

/** Write a row of a weight as float32. */
function unpackRow<Eight, Scales>(w: usize, row: i32, y: usize, k: i32): void {
  const size = packedBytes<Eight, Scales>();
  const scales = scaleBytes<Scales>();
  const lane = <usize>(row & 7);
  let p = w + <usize>(row >> 3) * <usize>(k >> 5) * size;
  for (let c = 0; c < k; c++) {
    const inside = c & 31;
    const half = <usize>(inside >> 4);
    const block = lane + (sizeof<Scales>() == 1 ? half << 3 : 0);
    const part = scales + ((<usize>((inside & 15) >> 2)) << 5) + (lane << 2) + (inside & 3);
    const d = one<Scales>(p, block);
    const m = one<Scales>(p + (scales >> 1), block);
    let number: i32;
    if (sizeof<Eight>() == 1) number = load<i8>(p + part + (half << 7));
    else number = half ? load<u8>(p + part) >> 4 : load<u8>(p + part) & 15;
    store<f32>(y + ((<usize>c) << 2), <f32>number * d + m);
    if (inside == 31) p += size;
  }
}

/** Look a row up in a table of one of these forms. */
export function lookUp(form: i32, w: usize, row: i32, y: usize, k: i32): void {
  if (form == 0) unpackRow<u16, u32>(w, row, y, k);
  else if (form == 1) unpackRow<u8, u32>(w, row, y, k);
  else if (form == 2) unpackRow<u16, u8>(w, row, y, k);
  else if (form == 3) unpackRow<u8, u8>(w, row, y, k);
  else if (form == 4) unpackRow<u16, u16>(w, row, y, k);
  else unpackRow<u8, u16>(w, row, y, k);
}
