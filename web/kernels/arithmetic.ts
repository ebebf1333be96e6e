// Arithmetic on four float32 at a time.

/** a * b + c with two roundings, as everywhere: the fused one of relaxed SIMD has one on some processors. */
export function multiplyAdd(a: v128, b: v128, c: v128): v128 {
  return f32x4.add(f32x4.mul(a, b), c);
}

/** e to the power of x, to about 2 units in the last place. */
export function exp(x: v128): v128 {
  const clamped = f32x4.max(f32x4.min(x, f32x4.splat(88)), f32x4.splat(-87));
  const n = f32x4.nearest(f32x4.mul(clamped, f32x4.splat(1.44269504)));
  let r = f32x4.sub(clamped, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.sub(r, f32x4.mul(n, f32x4.splat(-2.1219444e-4)));
  let p = f32x4.splat(1.98756915e-4);
  p = multiplyAdd(p, r, f32x4.splat(1.3981999507e-3));
  p = multiplyAdd(p, r, f32x4.splat(8.3334519073e-3));
  p = multiplyAdd(p, r, f32x4.splat(4.1665795894e-2));
  p = multiplyAdd(p, r, f32x4.splat(1.6666665459e-1));
  p = multiplyAdd(p, r, f32x4.splat(5.0000001201e-1));
  p = f32x4.add(multiplyAdd(p, f32x4.mul(r, r), r), f32x4.splat(1));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23);
  return f32x4.mul(p, power);
}

export function sumOf(x: v128): f32 {
  const pairs = f32x4.add(x, v128.shuffle<i32>(x, x, 2, 3, 0, 1));
  return f32x4.extract_lane(pairs, 0) + f32x4.extract_lane(pairs, 1);
}

export function largestOf(x: v128): f32 {
  const pairs = f32x4.max(x, v128.shuffle<i32>(x, x, 2, 3, 0, 1));
  return max(f32x4.extract_lane(pairs, 0), f32x4.extract_lane(pairs, 1));
}
