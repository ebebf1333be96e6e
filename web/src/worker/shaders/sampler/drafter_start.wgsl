// Before the steps of a draft model in a drafted step. Its first step runs the sequence's last two tokens, since the first of them may be
// a draft that it did not run on; its caches hold all tokens before these, and later ones of refused drafts.
//
// VOCAB is the draft model's. Its cursor begins at 0 in each drafted step. Dispatch: (1). After sampler.wgsl.

fn known(token: u32) -> u32 {
  return select(token, 0u, token >= VOCAB);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  let length = state[0];
  let end = min(length + POSITIONS, arrayLength(&drafter_mask) / 2u);
  for (var i = length + thread; i < end; i += WG) {
    drafter_mask[2u * i] = 0u;
    drafter_mask[2u * i + 1u] = 0u;
  }
  if (thread != 0u || length < 2u) {
    return;
  }
  let last = sequence_length(0u) - 1u;
  drafter_inputs[0] = known(sequence_token(0u, last - 1u));
  drafter_inputs[1] = 0u;
  drafter_inputs[2] = known(sequence_token(0u, last));
  drafter_inputs[3] = 0u;
  drafter_mask[2u * length - 2u] = 1u;
  drafter_mask[2u * length - 1u] = 0u;
  drafter_state[0] = length - 1u;
  drafter_state[1] = 0u;
  drafter_state[2] = 0u;
}
