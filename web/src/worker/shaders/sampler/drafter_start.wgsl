// Before the steps of a draft model in a drafted step: its state becomes that after all tokens of the sequence but the last, which is
// the input of its first step. Its caches have that many positions from the steps before, and later ones of refused drafts.
//
// VOCAB is the draft model's. Its cursor begins at 0 in each drafted step. Dispatch: (1). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  let length = state[0];
  let end = min(length + POSITIONS, arrayLength(&drafter_mask) / 2u);
  for (var i = length + thread; i < end; i += WG) {
    drafter_mask[2u * i] = 0u;
    drafter_mask[2u * i + 1u] = 0u;
  }
  if (thread != 0u || length == 0u) {
    return;
  }
  let token = sequence_token(0u, sequence_length(0u) - 1u);
  drafter_state[0] = length;
  drafter_state[1] = 0u;
  drafter_state[2] = 0u;
  drafter_inputs[0] = select(token, 0u, token >= VOCAB);
  drafter_inputs[1] = 0u;
  drafter_mask[2u * length - 2u] = 1u;
  drafter_mask[2u * length - 1u] = 0u;
  drafter_positions[0] = length - 1u;
  drafter_positions[1] = 0u;
}
