// Products of weights in int4 or int8 with eight elements of x. With HALF, products of eight elements are added as
// float16: `spread_dot` is a SHARE-th of the sum, before the block's scale; `spread_added` adds it to another.

#include packing

// Eight elements of x.
#if HALF
#include packed_halves

alias Octet = vec4<u32>;

// The shares of eight weights, in pairs as those of x.
struct Spread {
  a: vec2<f16>,
  b: vec2<f16>,
  c: vec2<f16>,
  d: vec2<f16>,
}

fn chain(w: Spread, o: Octet) -> vec2<f16> {
  let first = w.a * halves_of(o.x);
  let second = fma(w.b, halves_of(o.y), first);
  let third = fma(w.c, halves_of(o.z), second);
  return fma(w.d, halves_of(o.w), third);
}

// Products use a share of q - zero, so that none
// exceeds |x|; shares of 1024 + q and their differences are exact in float16.
#if BYTES
#if zeros
const SHARE: f32 = 256.0;
const STEP: element = 0.00390625;
#else
const SHARE: f32 = 128.0;
const STEP: element = 0.0078125;
const ZERO: element = 1.0;
#endif

alias Eight = vec2<u32>; // weights of eight elements
alias Part = f32; // of a sum

fn shares(word: u32, zero: element) -> vec2<f16> {
  return fma(pair_of(word), vec2<f16>(STEP), vec2<f16>(-1024.0 * STEP - zero));
}

fn spread(w: Eight, zero: element) -> Spread {
  return Spread(shares(w.x, zero), shares(w.x >> 8u, zero), shares(w.y, zero), shares(w.y >> 8u, zero));
}

fn spread_dot(w: Spread, o: Octet) -> Part {
  let sum = chain(w, o);
  return f32(sum.x) + f32(sum.y);
}

fn spread_added(w: Spread, o: Octet, before: Part) -> Part {
  return before + spread_dot(w, o);
}

fn total_of(part: Part) -> f32 {
  return part;
}
#else
#if zeros
const SHARE: f32 = 16.0;
const STEP: element = 0.0625;
#else
const SHARE: f32 = 8.0;
const STEP: element = 0.125;
const ZERO: element = 1.0;
#endif

alias Eight = u32;
alias Part = vec2<f16>;

fn shares(word: u32, zero: element) -> vec2<f16> {
  return fma(pair_of(word), vec2<f16>(STEP), vec2<f16>(-1024.0 * STEP - zero));
}

// 0x6400 | n << 4 is the float16 1024 + 16 n.
fn shares_above(word: u32, zero: element) -> vec2<f16> {
  let above = halves_of((word & 0x00f000f0u) | 0x64006400u);
  return fma(above, vec2<f16>(STEP / 16.0), vec2<f16>(-64.0 * STEP - zero));
}

fn spread(w: Eight, zero: element) -> Spread {
  return Spread(shares(w, zero), shares_above(w, zero), shares(w >> 8u, zero), shares_above(w >> 8u, zero));
}

fn spread_dot(w: Spread, o: Octet) -> Part {
  return chain(w, o);
}

fn spread_added(w: Spread, o: Octet, before: Part) -> Part {
  let second = fma(w.b, halves_of(o.y), fma(w.a, halves_of(o.x), before));
  return fma(w.d, halves_of(o.w), fma(w.c, halves_of(o.z), second));
}

fn total_of(part: Part) -> f32 {
  return f32(part.x) + f32(part.y);
}
#endif
#else
alias Octet = mat2x4<f32>;

fn dealt(o: Octet) -> Octet {
  return o;
}

const SHARE: f32 = 1.0;
#if BYTES
const ZERO: f32 = 128.0;
alias Eight = vec2<u32>; // weights of eight elements
#else
const ZERO: f32 = 8.0;
alias Eight = u32;
#endif
alias Part = f32; // of a sum
alias Spread = mat2x4<f32>; // eight weights less their zero point

// 0x4b000000 | n is the float32 8388608 + n.
fn shares(words: vec4<u32>, zero: f32) -> vec4<f32> {
  return bitcast<vec4<f32>>((words & vec4<u32>((1u << BITS) - 1u)) | vec4<u32>(0x4b000000u)) - (8388608.0 + zero);
}

fn spread(w: Eight, zero: f32) -> Spread {
#if BYTES
  let words = vec4<u32>(w.x, w.x >> 8u, w.x >> 16u, w.x >> 24u);
  let above = vec4<u32>(w.y, w.y >> 8u, w.y >> 16u, w.y >> 24u);
#else
  let words = vec4<u32>(w, w >> 4u, w >> 8u, w >> 12u);
  let above = words >> vec4<u32>(16u);
#endif
  return Spread(shares(words, zero), shares(above, zero));
}

fn spread_dot(w: Spread, o: Octet) -> Part {
  return dot(w[0], o[0]) + dot(w[1], o[1]);
}

fn spread_added(w: Spread, o: Octet, before: Part) -> Part {
  return before + spread_dot(w, o);
}

fn total_of(part: Part) -> f32 {
  return part;
}
#endif

fn octet_dot(w: Eight, o: Octet, zero: element) -> Part {
  return spread_dot(spread(w, zero), o);
}

#if minima
// A SHARE-th of the sum of eight elements.
fn octet_sum(o: Octet) -> f32 {
#if HALF
  let sum = (halves_of(o.x) + halves_of(o.y)) + (halves_of(o.z) + halves_of(o.w));
  return (f32(sum.x) + f32(sum.y)) / SHARE;
#else
  return dot(o[0] + o[1], vec4<f32>(1.0));
#endif
}
#endif

#if zeros
// The share of a zero point, read from its word.
fn zero_share(word: u32, at: u32) -> element {
  return element(f32(number_in(word, at)) / SHARE);
}
#endif
