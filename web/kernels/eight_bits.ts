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
    const d = v128.load32_splat(scale);
    for (let half: usize = 0; half < 2; half++) {
      let s0 = zero,
        s1 = zero;
      for (let j: usize = 0; j < 4; j += 2) {
        // Sums of 16 bits have room for 2 products.
        const x = a + (half << 4) + (j << 2);
        const first = v128.load32_splat(x);
        const second = v128.load32_splat(x, 4);
        const at = p + 16 + (half << 7) + (j << 5);
        const t0 = dotAdd(second, v128.load(at, 32), dot(first, v128.load(at)));
        const t1 = dotAdd(second, v128.load(at, 48), dot(first, v128.load(at, 16)));
        s0 = i32x4.add(s0, i32x4.extadd_pairwise_i16x8_s(t0));
        s1 = i32x4.add(s1, i32x4.extadd_pairwise_i16x8_s(t1));
      }
      const c0 = fourOf<u64>(p + (half << 3), false, whole);
      const c1 = fourOf<u64>(p + (half << 3), true, whole);
      const m = f32x4.mul(v128.load32_splat(halves), f32x4.splat(-32));
      f0 = multiplyAdd(m, c0, scaled(s0, d, c0, f0));
      f1 = multiplyAdd(m, c1, scaled(s1, d, c1, f1));
      halves += 4;
    }
    p += blockBytes<u8, u64>();
    scale += 4;
  }
  v128.store(y, f0);
  v128.store(y, f1, 16);
}
