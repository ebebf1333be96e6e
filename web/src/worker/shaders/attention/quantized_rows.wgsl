// Rows of quantized caches, as onnxruntime's WebGPU provider packs them: one float32 scale, then HEAD elements.
//
// With 8 bits an element is (byte - 128) * scale, and the scale 1/127 of the largest magnitude in the row. FOUR_BITS: an
// element is one of 16 levels times the scale, the row's length, after the row was turned by a Hadamard matrix.

#if FOUR_BITS
const ROW: u32 = 1u + HEAD / 8u; // words of a head of one position
#include quantized_levels

var<workgroup> levels: array<f32, 16>;

// To be called by every thread of a workgroup, before `quad`.
fn lay_out_levels(thread: u32) {
  var all = LEVELS;
  for (var i = thread; i < 16u; i += WORKGROUP) {
    levels[i] = all[i];
  }
  workgroupBarrier();
}

// Four elements out of the low half of a word, without the scale.
fn quad_of_row(word: u32) -> vec4<f32> {
  return vec4<f32>(
    levels[word & 15u], levels[extractBits(word, 4u, 4u)], levels[extractBits(word, 8u, 4u)], levels[extractBits(word, 12u, 4u)]);
}
#else
const ROW: u32 = 1u + HEAD / 4u;

fn lay_out_levels(thread: u32) {}

// Four elements out of a word, without the scale: a byte b is put into the mantissa of 2^23 + b, which costs less than a
// conversion.
fn quad_of_row(word: u32) -> vec4<f32> {
  let bytes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - vec4<f32>(8388736.0);
}
#endif
