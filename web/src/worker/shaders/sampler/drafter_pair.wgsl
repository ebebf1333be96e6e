// Between a draft model's step over two tokens and its pick after the second one: its sequence now has both.
//
// Dispatch: (1). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  if (thread == 0u) {
    drafter_state[0] += 1u;
    drafter_state[PLACE] = 1u;
    drafter_state[REFUSED] = 0u;
  }
}
