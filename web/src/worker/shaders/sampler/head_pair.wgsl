// Between a head's first step in a drafted step and its pick after the last token of the sequence, which is one of the step's rows.
//
// Dispatch: (1). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  if (thread == 0u) {
    let picks = max(state[PLACE], 1u);
    drafter_state[0] += picks - 1u;
    drafter_state[PLACE] = picks - 1u;
    drafter_state[REFUSED] = 0u;
  }
}
