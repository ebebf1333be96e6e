// An element of a row of a quantized cache (quantized_rows.wgsl), one at a time.

#if FOUR_BITS
const IN_WORD = 8u;
const LEVELS = array<f32, 16>(
  -0.2377, -0.1809, -0.1419, -0.1104, -0.0829, -0.0578, -0.0342, -0.0113,
  0.0113, 0.0342, 0.0578, 0.0829, 0.1104, 0.1419, 0.1809, 0.2377);

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
