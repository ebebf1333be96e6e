// Weights in integers as float16, eight at a time, rounded once as (q - zero) * scale + minimum. An Octet is a vec4<u32>.

#include packed_halves

// The numbers that make weights of a block's integers.
struct Block {
  zero: element, // with 1024 added
  scale: element,
#if minima
  least: element,
#endif
}

// Two integers as weights.
fn pair(word: u32, block: Block) -> u32 {
  let above = pair_of(word) - vec2<element>(block.zero);
#if minima
  return as_word(vec2<f16>(fma(above, vec2<element>(block.scale), vec2<element>(block.least))));
#else
  return as_word(vec2<f16>(above * vec2<element>(block.scale)));
#endif
}

#if BYTES
const ZERO: element = 1152.0;

fn unpacked(words: vec2<u32>, block: Block) -> Octet {
  return Octet(pair(words.x, block), pair(words.x >> 8u, block), pair(words.y, block), pair(words.y >> 8u, block));
}
#else
const ZERO: element = 1032.0;

fn unpacked(word: u32, block: Block) -> Octet {
  return Octet(pair(word, block), pair(word >> 4u, block), pair(word >> 8u, block), pair(word >> 12u, block));
}
#endif
