// float16 and float32 by their bits: nothing depends on shader-f16, nor on how an adapter rounds or flushes.

// The float32 of a float16.
fn widen(half: u32) -> u32 {
  let sign = (half & 0x8000u) << 16u;
  let exponent = (half >> 10u) & 31u;
  let fraction = half & 0x3ffu;
  if (exponent == 31u) {
    return sign | select(0x7f800000u, 0x7fc00000u | (fraction << 13u), fraction != 0u);
  }
  if (exponent != 0u) {
    return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
  }
  if (fraction == 0u) {
    return sign;
  }
  let shift = countLeadingZeros(fraction) - 21u;
  return sign | ((113u - shift) << 23u) | (((fraction << shift) & 0x3ffu) << 13u);
}

// The float16 nearest to a float32, ties to even.
fn narrow(bits: u32) -> u32 {
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return sign | 0x7e00u | ((magnitude >> 13u) & 0x3ffu);
  }
  if (magnitude >= 0x477ff000u) { // 65520, halfway from the largest float16 to 65536
    return sign | 0x7c00u;
  }
  if (magnitude >= 0x38800000u) { // 2^-14, the least normal float16
    let rebiased = magnitude - 0x38000000u;
    return sign | ((rebiased + 0xfffu + ((rebiased >> 13u) & 1u)) >> 13u);
  }
  let exponent = magnitude >> 23u;
  if (exponent < 102u) { // below half the least float16
    return sign;
  }
  let shift = 126u - exponent;
  let fraction = (magnitude & 0x7fffffu) | 0x800000u;
  let quotient = fraction >> shift;
  let rest = fraction & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let up = rest > half || (rest == half && (quotient & 1u) == 1u);
  return sign | (quotient + select(0u, 1u, up));
}
