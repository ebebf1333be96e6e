// Packed weights: their forms, and steps of all products by them.
//
// A group of 8 rows of a weight has for each 32 columns: scales, minima (8 rows for each block of the 32 columns), then the q of the
// weights. A vector has 4 rows in its lanes, 4 columns in the bytes of a lane; two vectors are the 8 rows. In 4 bits a byte
// has column c in its lower half and c + 16 in its upper one; in 8 bits, which have signs, the vectors of columns 0 to 15
// come first.
//
// The tags of the functions' types: of Eight u8 for true, u16 for false; of Scales
//   u32 for blocks of 32 columns in float32, u8 for blocks of 16 in float32, u16 for blocks of 32 in float16,
//   f32 for blocks of 32 in float16 without minima: q has its zero in the middle,
//   u64 for scales and minima in bytes, times a scale and a minimum in float16 for each 256 columns, before these. Its 8
//   bits are q of 6 bits without sign, in blocks of 16, whose zero is 32; they have no minima.

import { multiplyAdd } from "./arithmetic";

/** The exponents of float32 are larger than those of float16 by so much. */
const LARGER: i32 = 112 << 23;
/** The smallest float16 with an exponent. */
const LEAST: f32 = 6.103515625e-5;

/** Four float16. Those without an exponent are given one, and what that added is taken away: processors are slow with
 * float32 that have none. */
export function fourHalves(at: usize): v128 {
  const bits = i32x4.shl(v128.load_ext<i16>(at), 13);
  const x = i32x4.add(v128.and(bits, i32x4.splat(0x0fffe000)), i32x4.splat(LARGER));
  const added = f32x4.pmin(f32x4.sub(x, f32x4.splat(LEAST)), f32x4.splat(0));
  return v128.or(f32x4.add(x, added), v128.and(bits, i32x4.splat(0x80000000)));
}

export function oneHalf(at: usize): f32 {
  const bits = (<i32>load<i16>(at)) << 13;
  const x = reinterpret<f32>((bits & 0x0fffe000) + LARGER);
  return copysign<f32>(x + min<f32>(x - LEAST, 0), reinterpret<f32>(bits));
}

export function isSuper<Scales>(): bool {
  return sizeof<Scales>() == 8;
}

/** Whether the zero of q is in the middle, without minima. */
export function isCentred<Scales>(): bool {
  return isFloat<Scales>();
}

/** Scales or minima of the first four rows, or of the others if `high`, of a block of 32 columns; those of the 256
 * columns are at `whole`. */
export function fourOf<Scales>(at: usize, high: bool, whole: usize): v128 {
  if (isSuper<Scales>()) {
    const bytes = v128.load_ext<i8>(at);
    const four = high ? i32x4.extend_high_i16x8_s(bytes) : i32x4.extend_low_i16x8_s(bytes);
    return f32x4.mul(f32x4.convert_i32x4_s(four), fourHalves(whole + (high ? 8 : 0)));
  }
  if (sizeof<Scales>() == 2 || isCentred<Scales>()) return fourHalves(at + (high ? 8 : 0));
  return v128.load(at + (high ? 16 : 0));
}

/** The bytes of the scales of a block of 32 columns, or of one half of them. */
export function eightBytes<Scales>(): usize {
  return isSuper<Scales>() ? 8 : sizeof<Scales>() == 2 || isCentred<Scales>() ? 16 : 32;
}

/** The bytes of the scales and minima of a group for 32 columns. */
export function scaleBytes<Scales>(): usize {
  return (sizeof<Scales>() == 1 ? 4 : isCentred<Scales>() ? 1 : 2) * eightBytes<Scales>();
}

/** The bytes of a group for 32 columns. */
export function blockBytes<Eight, Scales>(): usize {
  return scaleBytes<Scales>() + (sizeof<Eight>() == 1 ? 256 : 128);
}

/** The bytes before 256 columns. */
export function superBytes<Eight, Scales>(): usize {
  return isSuper<Scales>() ? (sizeof<Eight>() == 1 ? 16 : 32) : 0;
}

/** The bytes of a group. */
export function groupBytes<Eight, Scales>(k: i32): usize {
  return <usize>(k >> 5) * blockBytes<Eight, Scales>() + <usize>(k >> 8) * superBytes<Eight, Scales>();
}

/** Products of 8 bits and of 6 or less, in 16 bits, added for pairs of columns. V8's first compiler computes the relaxed
 * product that adds in 32 bits wrongly. */
export function dot(a: v128, w: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return i16x8.relaxed_dot_i8x16_i7x16_s(a, w);
  const even = i16x8.mul(i16x8.shr_s(i16x8.shl(a, 8), 8), v128.and(w, i16x8.splat(255)));
  return i16x8.add(even, i16x8.mul(i16x8.shr_s(a, 8), i16x8.shr_u(w, 8)));
}

/** The sum and such a product. */
export function dotAdd(a: v128, w: v128, sum: v128): v128 {
  return i16x8.add(sum, dot(a, w));
}

/** sum + numbers * activations' scale * weights' scales */
export function scaled(numbers: v128, d: v128, scales: v128, sum: v128): v128 {
  return multiplyAdd(f32x4.mul(f32x4.convert_i32x4_s(numbers), d), scales, sum);
}

/** The same of pairs of sums in 16 bits. */
export function scaledPairs(numbers: v128, d: v128, scales: v128, sum: v128): v128 {
  return scaled(i32x4.extadd_pairwise_i16x8_s(numbers), d, scales, sum);
}
