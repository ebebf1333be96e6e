// The operations of a program but for products. capstan.device.reference.cpu_operations defines them.

import { exp, largestOf, multiplyAdd, sumOf } from "./arithmetic";

/** The bytes of a row of `width` quantized activations: the numbers, for each 32 a scale and the sum of their values, for
 * each 16 the sum of their values. */
export function quantizedBytes(width: i32): usize {
  return width + (width >> 1);
}

/** The sum of 16 signed bytes. */
function sumOfBytes(x: v128): i32 {
  const pairs = i32x4.extadd_pairwise_i16x8_s(i16x8.extadd_pairwise_i8x16_s(x));
  const halves = i32x4.add(pairs, v128.shuffle<i32>(pairs, pairs, 2, 3, 0, 1));
  return i32x4.extract_lane(halves, 0) + i32x4.extract_lane(halves, 1);
}

function sixteen(x: usize, factor: v128): v128 {
  const a = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x), factor)));
  const b = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x, 16), factor)));
  const c = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x, 32), factor)));
  const d = i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x, 48), factor)));
  return i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(a, b), i16x8.narrow_i32x4_s(c, d));
}

/** Bring some columns of a row, from a multiple of 32 to another, to 8 bits, from -127 to 127, with a scale for each 32. */
export function quantize(x: usize, q: usize, width: i32, begin: i32, end: i32): void {
  const blocks: usize = width >> 5;
  const scales = q + width;
  const sums = scales + blocks * 4;
  const halves = sums + blocks * 4;
  for (let block: usize = begin >> 5; block < <usize>(end >> 5); block++) {
    const from = x + (block << 7);
    let most = f32x4.abs(v128.load(from));
    for (let i: usize = 16; i < 128; i += 16) most = f32x4.max(most, f32x4.abs(v128.load(from + i)));
    const largest = largestOf(most);
    const scale = largest / 127;
    const factor = f32x4.splat(largest > 0 ? <f32>127 / largest : 0);
    const low = sixteen(from, factor);
    const high = sixteen(from + 64, factor);
    v128.store(q + (block << 5), low);
    v128.store(q + (block << 5), high, 16);
    const a = sumOfBytes(low);
    const b = sumOfBytes(high);
    store<f32>(scales + (block << 2), scale);
    store<f32>(sums + (block << 2), scale * <f32>(a + b));
    store<f32>(halves + (block << 3), scale * <f32>a);
    store<f32>(halves + (block << 3), scale * <f32>b, 4);
  }
}

/** Some columns of y = x / sqrt(mean of squares + epsilon) * weight, over x + skip if there is a skip; `sum` gets that sum. */
export function norm(
  x: usize,
  skip: usize,
  weight: usize,
  y: usize,
  sum: usize,
  width: i32,
  epsilon: f32,
  begin: i32,
  end: i32,
): void {
  let squares = f32x4.splat(0);
  for (let i: usize = 0; i < (<usize>width) << 2; i += 16) {
    const each = skip ? f32x4.add(v128.load(x + i), v128.load(skip + i)) : v128.load(x + i);
    squares = multiplyAdd(each, each, squares);
  }
  const factor = f32x4.splat(<f32>1 / sqrt<f32>(sumOf(squares) / <f32>width + epsilon));
  for (let i: usize = (<usize>begin) << 2; i < (<usize>end) << 2; i += 16) {
    const each = skip ? f32x4.add(v128.load(x + i), v128.load(skip + i)) : v128.load(x + i);
    if (skip) v128.store(sum + i, each);
    v128.store(y + i, f32x4.mul(f32x4.mul(each, factor), v128.load(weight + i)));
  }
}

/** y = gate * sigmoid(gate) * up, or the gelu of the gate, by tanh, times up. */
export function gate(x: usize, up: usize, y: usize, width: i32, gelu: i32): void {
  const one = f32x4.splat(1);
  for (let i: usize = 0, end = (<usize>width) << 2; i < end; i += 16) {
    const each = v128.load(x + i);
    let inner = each;
    if (gelu) {
      const cubic = f32x4.mul(f32x4.splat(0.07135481), f32x4.mul(each, each));
      inner = f32x4.mul(each, f32x4.add(f32x4.splat(1.5957691), cubic));
    }
    const sigmoid = f32x4.div(one, f32x4.add(one, exp(f32x4.neg(inner))));
    v128.store(y + i, f32x4.mul(f32x4.mul(each, sigmoid), v128.load(up + i)));
  }
}

/** y = x * factor */
export function scale(x: usize, y: usize, width: i32, factor: f32): void {
  for (let i: usize = 0, end = (<usize>width) << 2; i < end; i += 16)
    v128.store(y + i, f32x4.mul(v128.load(x + i), f32x4.splat(factor)));
}

/** x += y */
export function add(x: usize, y: usize, width: i32): void {
  for (let i: usize = 0, end = (<usize>width) << 2; i < end; i += 16)
    v128.store(x + i, f32x4.add(v128.load(x + i), v128.load(y + i)));
}

/** Write a head of x to y with its first 2 * `half` elements rotated; elements i and i + half are a pair, or 2 i and
 * 2 i + 1 if they are `interleaved`. */
export function rotate(x: usize, y: usize, size: i32, half: i32, cos: usize, sin: usize, interleaved: i32): void {
  const step: usize = interleaved ? 8 : 4;
  const apart: usize = interleaved ? 4 : (<usize>half) << 2;
  for (let i: usize = 0; i < <usize>half; i++) {
    const at = i * step;
    const c = load<f32>(cos + (i << 2));
    const s = load<f32>(sin + (i << 2));
    const a = load<f32>(x + at);
    const b = load<f32>(x + at + apart);
    store<f32>(y + at, a * c - b * s);
    store<f32>(y + at + apart, b * c + a * s);
  }
  if (x != y) for (let i = (<usize>half) << 3; i < (<usize>size) << 2; i += 4) store<f32>(y + i, load<f32>(x + i));
}

/** The products of a query and the keys of four positions, `row` bytes apart. */
function fourScores(q: usize, key: usize, row: usize): v128 {
  let a = f32x4.splat(0),
    b = a,
    c = a,
    d = a;
  for (let i: usize = 0; i < row; i += 16) {
    const x = v128.load(q + i);
    a = multiplyAdd(x, v128.load(key + i), a);
    b = multiplyAdd(x, v128.load(key + row + i), b);
    c = multiplyAdd(x, v128.load(key + 2 * row + i), c);
    d = multiplyAdd(x, v128.load(key + 3 * row + i), d);
  }
  const ab = f32x4.add(v128.shuffle<i32>(a, b, 0, 4, 1, 5), v128.shuffle<i32>(a, b, 2, 6, 3, 7));
  const cd = f32x4.add(v128.shuffle<i32>(c, d, 0, 4, 1, 5), v128.shuffle<i32>(c, d, 2, 6, 3, 7));
  return f32x4.add(v128.shuffle<i64>(ab, cd, 0, 2), v128.shuffle<i64>(ab, cd, 1, 3));
}

/** Attention of one head over the positions from `begin` to `end` of its cache; `scores` has room for them. */
export function attend(
  q: usize,
  keys: usize,
  values: usize,
  y: usize,
  size: i32,
  begin: i32,
  end: i32,
  scale: f32,
  scores: usize,
): void {
  const row = (<usize>size) << 2;
  const count = (<usize>(end - begin)) << 2;
  let key = keys + <usize>begin * row;
  let at: usize = 0;
  for (; at + 16 <= count; at += 16, key += 4 * row)
    v128.store(scores + at, f32x4.mul(fourScores(q, key, row), f32x4.splat(scale)));
  for (; at < count; at += 4, key += row) {
    let sum = f32x4.splat(0);
    for (let i: usize = 0; i < row; i += 16) sum = multiplyAdd(v128.load(q + i), v128.load(key + i), sum);
    store<f32>(scores + at, sumOf(sum) * scale);
  }
  // Scores up to a whole vector weigh nothing.
  for (let i = count; i & 15; i += 4) store<f32>(scores + i, -Infinity);
  let most = f32x4.splat(-Infinity);
  for (let i: usize = 0; i < count; i += 16) most = f32x4.max(most, v128.load(scores + i));
  const shift = f32x4.splat(largestOf(most));
  let whole = f32x4.splat(0);
  for (let i: usize = 0; i < count; i += 16) {
    const score = v128.load(scores + i);
    const weight = v128.and(exp(f32x4.sub(score, shift)), f32x4.gt(score, f32x4.splat(-Infinity)));
    whole = f32x4.add(whole, weight);
    v128.store(scores + i, weight);
  }
  const factor = f32x4.splat(<f32>1 / sumOf(whole));
  let i: usize = 0;
  for (; i + 64 <= row; i += 64) {
    let value = values + <usize>begin * row + i;
    let a = f32x4.splat(0),
      b = a,
      c = a,
      d = a;
    for (let at: usize = 0; at < count; at += 4, value += row) {
      const weight = v128.load32_splat(scores + at);
      a = multiplyAdd(weight, v128.load(value), a);
      b = multiplyAdd(weight, v128.load(value, 16), b);
      c = multiplyAdd(weight, v128.load(value, 32), c);
      d = multiplyAdd(weight, v128.load(value, 48), d);
    }
    v128.store(y + i, f32x4.mul(a, factor));
    v128.store(y + i, f32x4.mul(b, factor), 16);
    v128.store(y + i, f32x4.mul(c, factor), 32);
    v128.store(y + i, f32x4.mul(d, factor), 48);
  }
  for (; i < row; i += 16) {
    let value = values + <usize>begin * row + i;
    let sum = f32x4.splat(0);
    for (let at: usize = 0; at < count; at += 4, value += row)
      sum = multiplyAdd(v128.load32_splat(scores + at), v128.load(value), sum);
    v128.store(y + i, f32x4.mul(sum, factor));
  }
}
