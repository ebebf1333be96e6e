// Products of activations in 8 bits and weights in 8, or in 6.

import { multiplyAdd } from "./arithmetic";
import { blockBytes, dot, dotAdd, eightBytes, fourOf, isCentred, scaleBytes, scaled, superBytes } from "./packed";

/** The sums of neighbours. */
function pairs(a: v128, b: v128): v128 {
  return i32x4.add(v128.shuffle<i32>(a, b, 0, 2, 4, 6), v128.shuffle<i32>(a, b, 1, 3, 5, 7));
}

/** The products of a row of activations and of 8 rows of 8 bits, which are made in 16 bits. */
export function rowOfEight<Scales>(w: usize, q: usize, y: usize, k: i32): void {
  const blocks: usize = k >> 5;
  let p = w;
  let a = q;
  let scale = q + k;
  let sum = scale + blocks * 4;
  let halves = sum + blocks * 4;
  const scales = scaleBytes<Scales>();
  const eight = eightBytes<Scales>();
  const end = w + blocks * blockBytes<u8, Scales>();
  const zero = f32x4.splat(0);
  let f0 = zero,
    f1 = zero;
  while (p < end) {
    const d = v128.load32_splat(scale);
    let s0 = zero,
      s1 = zero,
      s2 = zero,
      s3 = zero;
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
        s0 = s1 = s2 = s3 = zero;
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
      f0 = scaled(pairs(s0, s1), d, fourOf<Scales>(p, false, 0), f0);
      f1 = scaled(pairs(s2, s3), d, fourOf<Scales>(p, true, 0), f1);
      if (!isCentred<Scales>()) {
        const m = v128.load32_splat(sum);
        f0 = multiplyAdd(m, fourOf<Scales>(p + eight, false, 0), f0);
        f1 = multiplyAdd(m, fourOf<Scales>(p + eight, true, 0), f1);
      }
    }
    p += blockBytes<u8, Scales>();
    a += 32;
    scale += 4;
    sum += 4;
    halves += 8;
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}

/** The same of 8 rows of 6 bits. */
export function rowOfSix(w: usize, q: usize, y: usize, k: i32): void {
  let p = w;
  let scale = q + k;
  let halves = scale + (((<usize>k) >> 5) << 3);
  const end = q + k;
  const zero = f32x4.splat(0);
  let whole = w;
  let f0 = zero,
    f1 = zero;
  for (let a = q; a < end; a += 32) {
    if (!((a - q) & 255)) p = (whole = p) + superBytes<u8, u64>();
    for (let half: usize = 0; half < 2; half++, halves += 4) {
      let s0 = zero,
        s1 = zero;
      for (let j: usize = 0; j < 4; j += 2) {
        const x = a + (half << 4) + (j << 2);
        const at = p + 16 + (half << 7) + (j << 5);
        s0 = twoFours(x, v128.load(at), v128.load(at, 32), s0);
        s1 = twoFours(x, v128.load(at, 16), v128.load(at, 48), s1);
      }
      f0 = ofHalf(s0, scale, halves, fourOf<u64>(p + (half << 3), false, whole), f0);
      f1 = ofHalf(s1, scale, halves, fourOf<u64>(p + (half << 3), true, whole), f1);
    }
    p += blockBytes<u8, u64>();
    scale += 4;
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}

/** The same of four rows of activations. */
export function fourRowsOfSix(w: usize, q: usize, qRow: usize, y: usize, yRow: usize, k: i32): void {
  const end = q + k;
  const zero = f32x4.splat(0);
  let p = w;
  let whole = w;
  let scale = q + k;
  let halves = scale + (((<usize>k) >> 5) << 3);
  let f0 = zero,
    f1 = zero;
  let g0 = zero,
    g1 = zero;
  let h0 = zero,
    h1 = zero;
  let i0 = zero,
    i1 = zero;
  for (let a = q; a < end; a += 32, scale += 4) {
    if (!((a - q) & 255)) p = (whole = p) + superBytes<u8, u64>();
    for (let half: usize = 0; half < 2; half++, halves += 4) {
      let s0 = zero,
        s1 = zero;
      let t0 = zero,
        t1 = zero;
      let u0 = zero,
        u1 = zero;
      let v0 = zero,
        v1 = zero;
      for (let j: usize = 0; j < 4; j += 2) {
        let x = a + (half << 4) + (j << 2);
        const at = p + 16 + (half << 7) + (j << 5);
        const w0 = v128.load(at);
        const w1 = v128.load(at, 16);
        const w2 = v128.load(at, 32);
        const w3 = v128.load(at, 48);
        s0 = twoFours(x, w0, w2, s0);
        s1 = twoFours(x, w1, w3, s1);
        x += qRow;
        t0 = twoFours(x, w0, w2, t0);
        t1 = twoFours(x, w1, w3, t1);
        x += qRow;
        u0 = twoFours(x, w0, w2, u0);
        u1 = twoFours(x, w1, w3, u1);
        x += qRow;
        v0 = twoFours(x, w0, w2, v0);
        v1 = twoFours(x, w1, w3, v1);
      }
      const c0 = fourOf<u64>(p + (half << 3), false, whole);
      const c1 = fourOf<u64>(p + (half << 3), true, whole);
      let from: usize = 0;
      f0 = ofHalf(s0, scale + from, halves + from, c0, f0);
      f1 = ofHalf(s1, scale + from, halves + from, c1, f1);
      from += qRow;
      g0 = ofHalf(t0, scale + from, halves + from, c0, g0);
      g1 = ofHalf(t1, scale + from, halves + from, c1, g1);
      from += qRow;
      h0 = ofHalf(u0, scale + from, halves + from, c0, h0);
      h1 = ofHalf(u1, scale + from, halves + from, c1, h1);
      from += qRow;
      i0 = ofHalf(v0, scale + from, halves + from, c0, i0);
      i1 = ofHalf(v1, scale + from, halves + from, c1, i1);
    }
    p += blockBytes<u8, u64>();
  }
  let to = y;
  v128.store(to, f0);
  v128.store(to, f1, 16);
  to += yRow;
  v128.store(to, g0);
  v128.store(to, g1, 16);
  to += yRow;
  v128.store(to, h0);
  v128.store(to, h1, 16);
  to += yRow;
  v128.store(to, i0);
  v128.store(to, i1, 16);
}

/** Products of 8 columns, in sums of 16 bits, which have room for two. */
function twoFours(x: usize, first: v128, second: v128, sum: v128): v128 {
  const both = dotAdd(v128.load32_splat(x, 4), second, dot(v128.load32_splat(x), first));
  return i32x4.add(sum, i32x4.extadd_pairwise_i16x8_s(both));
}

/** A block of 16 columns. */
function ofHalf(numbers: v128, scale: usize, half: usize, scales: v128, before: v128): v128 {
  const m = f32x4.mul(v128.load32_splat(half), f32x4.splat(-32));
  return multiplyAdd(m, scales, scaled(numbers, v128.load32_splat(scale), scales, before));
}
