// float16, which JavaScript has in few browsers, by its bits.

/** A float16 given by its bits, as a number (IEEE 754-2008, 3.6). */
export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** The numbers of all float16. */
export const HALVES = new Float32Array(65536).map((_, bits) => fromHalf(bits));

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

/** The bits of the float16 nearest to a float32, of two those of the even one. */
export function toHalf(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0]!;
  const sign = (bits >>> 16) & 0x8000;
  const size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  // 65520 and more are nearer to infinity.
  if (size >= 0x477ff000) return sign | 0x7c00;
  const exponent = size >>> 23;
  if (exponent < 102) return sign;
  const shift = exponent < 113 ? 126 - exponent : 13;
  const digits = exponent < 113 ? (size & 0x7fffff) | 0x800000 : size - (112 << 23);
  const rest = digits & ((1 << shift) - 1);
  const nearest = digits >>> shift;
  const middle = 1 << (shift - 1);
  return sign | (nearest + Number(rest > middle || (rest === middle && (nearest & 1) === 1)));
}
