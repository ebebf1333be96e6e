// Keys of logits: NaN counts as -inf, -0 as +0, as in py_src/capstan/stages/sampling.py.

const NEGATIVE_INFINITY_KEY = 0x007fffffu;

// A u32 of the same order as a float32.
fn key_of(bits: u32) -> u32 {
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return NEGATIVE_INFINITY_KEY;
  }
  if (magnitude == 0u) {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

// The float32 with the value of a float16; subnormal ones too.
fn float32_bits(half: u32) -> u32 {
  let sign = (half & 0x8000u) << 16u;
  let exponent = (half >> 10u) & 31u;
  let fraction = half & 0x3ffu;
  if (exponent == 31u) {
    return sign | 0x7f800000u | (fraction << 13u);
  }
  if (exponent != 0u) {
    return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
  }
  if (fraction == 0u) {
    return sign;
  }
  let leading = firstLeadingBit(fraction);
  return sign | ((leading + 103u) << 23u) | ((fraction << (23u - leading)) & 0x7fffffu);
}
