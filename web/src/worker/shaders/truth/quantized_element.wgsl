// An element of a row of a quantized cache (quantized_rows.wgsl), one at a time.

#if FOUR_BITS
const IN_WORD = 8u;
#include quantized_levels

// Element i of a word, without the scale.
fn element_of_row(word: u32, i: u32) -> f32 {
  var levels = LEVELS;
  return levels[extractBits(word, 4u * i, 4u)];
}
#else
const IN_WORD = 4u;

fn element_of_row(word: u32, i: u32) -> f32 {
  return f32(extractBits(word, 8u * i, 8u)) - 128.0;
}
#endif
const ROW = 1u + HEAD / IN_WORD; // words
