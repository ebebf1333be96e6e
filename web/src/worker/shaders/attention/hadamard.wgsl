// A head in workgroup memory, and its product with the Hadamard matrix of its size (a power of two), which is its own inverse
// but for the factor TURN for each of the two.

const TURN = 1.0 / sqrt(f32(HEAD));

var<workgroup> turning: array<f32, HEAD>;

// To be called by every thread of a workgroup, after a barrier; the product, without TURN, is in `turning` then.
fn turn_head(thread: u32) {
  for (var gap = 1u; gap < HEAD; gap *= 2u) {
    for (var pair = thread; pair < HEAD / 2u; pair += WORKGROUP) {
      let at = pair / gap * 2u * gap + pair % gap;
      let one = turning[at];
      let other = turning[at + gap];
      turning[at] = one + other;
      turning[at + gap] = one - other;
    }
    workgroupBarrier();
  }
}
