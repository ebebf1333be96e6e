// Integers of 4 bits, or 8 if BYTES, packed in words, the lowest bits first.

#if BYTES
const BITS: u32 = 8u;
#else
const BITS: u32 = 4u;
#endif

// The `at`-th integer of all, out of the word that contains it: word at / (32 / BITS).
fn number_in(word: u32, at: u32) -> u32 {
  return extractBits(word, at % (32u / BITS) * BITS, BITS);
}
