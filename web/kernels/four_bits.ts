// Products of activations in 8 bits and weights in 4: one row by one group, one by four, four by one.

import { multiplyAdd } from "./arithmetic";
import {
  blockBytes,
  dotAdd,
  eightBytes,
  fourOf,
  isCentred,
  isSuper,
  scaleBytes,
  scaledPairs,
  superBytes,
} from "./packed";

/** The upper four bits of each byte; a shift of bytes takes V8 five instructions. */
function upper(w: v128): v128 {
  return v128.and(i16x8.shr_u(w, 4), i8x16.splat(15));
}

function lower(w: v128): v128 {
  return v128.and(w, i8x16.splat(15));
}

/** The minima of a block of 32 columns of 4 bits, whose scales are given. */
function minimaOf<Scales>(at: usize, high: bool, whole: usize, scales: v128): v128 {
  if (isCentred<Scales>()) return f32x4.mul(scales, f32x4.splat(-8));
  return fourOf<Scales>(at + eightBytes<Scales>(), high, whole + 16);
}

/** A block of a row of activations and of four rows of weights: d and sum are the activations' scale and sum. */
function blockOf<Scales>(at: usize, high: bool, whole: usize, numbers: v128, d: v128, sum: v128, before: v128): v128 {
  const scales = fourOf<Scales>(at, high, whole);
  return multiplyAdd(sum, minimaOf<Scales>(at, high, whole, scales), scaledPairs(numbers, d, scales, before));
}

/** y gets the products of the row of activations at q (operations.ts, quantize) and the 8 rows of 4 bits at w. */
export function rowOfFour<Scales>(w: usize, q: usize, y: usize, k: i32): void {
  const scales = scaleBytes<Scales>();
  const sums = (<usize>(k >> 5)) << 2;
  const end = q + k;
  const zero = f32x4.splat(0);
  let p = w;
  let whole = w;
  let scale = q + k;
  let halves = scale + 2 * sums;
  let f0 = zero,
    f1 = zero;
  for (let a = q; a < end; a += 32, scale += 4, halves += 8) {
    if (isSuper<Scales>() && !((a - q) & 255)) p = (whole = p) + superBytes<u16, Scales>();
    // s: the first 16 columns, t: the others. Sums of 16 bits have room for 8 products.
    let s0 = zero,
      s1 = zero,
      t0 = zero,
      t1 = zero;
    for (let j: usize = 0; j < 4; j++) {
      const low = v128.load32_splat(a + (j << 2));
      const high = v128.load32_splat(a + (j << 2), 16);
      const at = p + scales + (j << 5);
      const w0 = v128.load(at);
      const w1 = v128.load(at, 16);
      s0 = dotAdd(low, lower(w0), s0);
      s1 = dotAdd(low, lower(w1), s1);
      t0 = dotAdd(high, upper(w0), t0);
      t1 = dotAdd(high, upper(w1), t1);
    }
    const d = v128.load32_splat(scale);
    if (sizeof<Scales>() == 1) {
      f0 = scaledPairs(t0, d, v128.load(p, 32), scaledPairs(s0, d, v128.load(p), f0));
      f1 = scaledPairs(t1, d, v128.load(p, 48), scaledPairs(s1, d, v128.load(p, 16), f1));
      const ml = v128.load32_splat(halves);
      const mh = v128.load32_splat(halves, 4);
      f0 = multiplyAdd(mh, v128.load(p, 96), multiplyAdd(ml, v128.load(p, 64), f0));
      f1 = multiplyAdd(mh, v128.load(p, 112), multiplyAdd(ml, v128.load(p, 80), f1));
    } else {
      const sum = v128.load32_splat(scale + sums);
      f0 = blockOf<Scales>(p, false, whole, i16x8.add(s0, t0), d, sum, f0);
      f1 = blockOf<Scales>(p, true, whole, i16x8.add(s1, t1), d, sum, f1);
    }
    p += blockBytes<u16, Scales>();
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}

/** The same of four groups of weights, `apart` bytes from one another: a core reads four streams faster than one. */
export function fourGroups<Scales>(w: usize, apart: usize, q: usize, y: usize, yApart: usize, k: i32): void {
  const scales = scaleBytes<Scales>();
  const sums = (<usize>(k >> 5)) << 2;
  const end = q + k;
  const zero = f32x4.splat(0);
  let p = w;
  let whole = w;
  let scale = q + k;
  let f0 = zero,
    f1 = zero,
    g0 = zero,
    g1 = zero,
    h0 = zero,
    h1 = zero,
    i0 = zero,
    i1 = zero;
  for (let a = q; a < end; a += 32, scale += 4) {
    if (isSuper<Scales>() && !((a - q) & 255)) p = (whole = p) + superBytes<u16, Scales>();
    let s0 = zero,
      s1 = zero,
      t0 = zero,
      t1 = zero,
      u0 = zero,
      u1 = zero,
      v0 = zero,
      v1 = zero;
    for (let j: usize = 0; j < 4; j++) {
      const low = v128.load32_splat(a + (j << 2));
      const high = v128.load32_splat(a + (j << 2), 16);
      let at = p + scales + (j << 5);
      let w0 = v128.load(at);
      let w1 = v128.load(at, 16);
      s0 = dotAdd(high, upper(w0), dotAdd(low, lower(w0), s0));
      s1 = dotAdd(high, upper(w1), dotAdd(low, lower(w1), s1));
      at += apart;
      w0 = v128.load(at);
      w1 = v128.load(at, 16);
      t0 = dotAdd(high, upper(w0), dotAdd(low, lower(w0), t0));
      t1 = dotAdd(high, upper(w1), dotAdd(low, lower(w1), t1));
      at += apart;
      w0 = v128.load(at);
      w1 = v128.load(at, 16);
      u0 = dotAdd(high, upper(w0), dotAdd(low, lower(w0), u0));
      u1 = dotAdd(high, upper(w1), dotAdd(low, lower(w1), u1));
      at += apart;
      w0 = v128.load(at);
      w1 = v128.load(at, 16);
      v0 = dotAdd(high, upper(w0), dotAdd(low, lower(w0), v0));
      v1 = dotAdd(high, upper(w1), dotAdd(low, lower(w1), v1));
    }
    const d = v128.load32_splat(scale);
    const sum = v128.load32_splat(scale + sums);
    let at = p;
    let own = whole;
    f0 = blockOf<Scales>(at, false, own, s0, d, sum, f0);
    f1 = blockOf<Scales>(at, true, own, s1, d, sum, f1);
    at += apart;
    own += apart;
    g0 = blockOf<Scales>(at, false, own, t0, d, sum, g0);
    g1 = blockOf<Scales>(at, true, own, t1, d, sum, g1);
    at += apart;
    own += apart;
    h0 = blockOf<Scales>(at, false, own, u0, d, sum, h0);
    h1 = blockOf<Scales>(at, true, own, u1, d, sum, h1);
    at += apart;
    own += apart;
    i0 = blockOf<Scales>(at, false, own, v0, d, sum, i0);
    i1 = blockOf<Scales>(at, true, own, v1, d, sum, i1);
    p += blockBytes<u16, Scales>();
  }
  let to = y;
  v128.store(to, f0);
  v128.store(to, f1, 16);
  to += yApart;
  v128.store(to, g0);
  v128.store(to, g1, 16);
  to += yApart;
  v128.store(to, h0);
  v128.store(to, h1, 16);
  to += yApart;
  v128.store(to, i0);
  v128.store(to, i1, 16);
}

/** The same of four rows of activations, so that weights are unpacked once for all of them; blocks have 32 columns. */
export function fourRows<Scales>(w: usize, q: usize, qRow: usize, y: usize, yRow: usize, k: i32): void {
  const scales = scaleBytes<Scales>();
  const sums = (<usize>(k >> 5)) << 2;
  const end = q + k;
  let p = w;
  let whole = w;
  let scale = q + k;
  const zero = f32x4.splat(0);
  let f0 = zero,
    f1 = zero,
    g0 = zero,
    g1 = zero,
    h0 = zero,
    h1 = zero,
    i0 = zero,
    i1 = zero;
  for (let a = q; a < end; a += 32, scale += 4) {
    if (isSuper<Scales>() && !((a - q) & 255)) p = (whole = p) + superBytes<u16, Scales>();
    let s0 = zero,
      s1 = zero,
      t0 = zero,
      t1 = zero,
      u0 = zero,
      u1 = zero,
      v0 = zero,
      v1 = zero;
    for (let j: usize = 0; j < 4; j++) {
      const at = p + scales + (j << 5);
      const low0 = lower(v128.load(at));
      const low1 = lower(v128.load(at, 16));
      const up0 = upper(v128.load(at));
      const up1 = upper(v128.load(at, 16));
      let x = a + (j << 2);
      let low: v128, high: v128;
      low = v128.load32_splat(x);
      high = v128.load32_splat(x, 16);
      s0 = dotAdd(high, up0, dotAdd(low, low0, s0));
      s1 = dotAdd(high, up1, dotAdd(low, low1, s1));
      x += qRow;
      low = v128.load32_splat(x);
      high = v128.load32_splat(x, 16);
      t0 = dotAdd(high, up0, dotAdd(low, low0, t0));
      t1 = dotAdd(high, up1, dotAdd(low, low1, t1));
      x += qRow;
      low = v128.load32_splat(x);
      high = v128.load32_splat(x, 16);
      u0 = dotAdd(high, up0, dotAdd(low, low0, u0));
      u1 = dotAdd(high, up1, dotAdd(low, low1, u1));
      x += qRow;
      low = v128.load32_splat(x);
      high = v128.load32_splat(x, 16);
      v0 = dotAdd(high, up0, dotAdd(low, low0, v0));
      v1 = dotAdd(high, up1, dotAdd(low, low1, v1));
    }
    const c0 = fourOf<Scales>(p, false, whole);
    const c1 = fourOf<Scales>(p, true, whole);
    const n0 = minimaOf<Scales>(p, false, whole, c0);
    const n1 = minimaOf<Scales>(p, true, whole, c1);
    let x = scale;
    let d = v128.load32_splat(x);
    let m = v128.load32_splat(x + sums);
    f0 = multiplyAdd(m, n0, scaledPairs(s0, d, c0, f0));
    f1 = multiplyAdd(m, n1, scaledPairs(s1, d, c1, f1));
    x += qRow;
    d = v128.load32_splat(x);
    m = v128.load32_splat(x + sums);
    g0 = multiplyAdd(m, n0, scaledPairs(t0, d, c0, g0));
    g1 = multiplyAdd(m, n1, scaledPairs(t1, d, c1, g1));
    x += qRow;
    d = v128.load32_splat(x);
    m = v128.load32_splat(x + sums);
    h0 = multiplyAdd(m, n0, scaledPairs(u0, d, c0, h0));
    h1 = multiplyAdd(m, n1, scaledPairs(u1, d, c1, h1));
    x += qRow;
    d = v128.load32_splat(x);
    m = v128.load32_splat(x + sums);
    i0 = multiplyAdd(m, n0, scaledPairs(v0, d, c0, i0));
    i1 = multiplyAdd(m, n1, scaledPairs(v1, d, c1, i1));
    p += blockBytes<u16, Scales>();
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
