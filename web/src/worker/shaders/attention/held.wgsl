// The positions, the new one included, that the caches of a sequence hold up to it: all of them or, if SLIDING, those from the
// sequence's base on, the last of its eight words of state. Past the end of a sequence that a burst ended, at least one.
fn held(sequence: u32) -> u32 {
#if SLIDING
  let base = state[8u * sequence + 7u];
  return max(state[8u * sequence], base + 1u) - base;
#else
  return state[8u * sequence];
#endif
}
