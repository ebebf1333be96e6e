// After the steps of a draft model in a drafted step of one sequence: its picks become the drafts. The step's inputs are the last token
// and the drafts; a pick past the vocabulary is no draft: NO_TOKEN, which no pick is, and input 0.
//
// Dispatch: (1). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  if (thread != 0u) {
    return;
  }
  state[PLACE] = 0u;
  state[REFUSED] = 0u;
  inputs[0] = sequence_token(0u, sequence_length(0u) - 1u);
  inputs[1] = 0u;
  for (var i = 0u; i + 1u < POSITIONS; i++) {
    let token = select(drafter_ring[i], NO_TOKEN, drafter_ring[i] >= VOCAB);
    memory[draft_slot(i)] = token;
    inputs[2u * i + 2u] = select(token, 0u, token == NO_TOKEN);
    inputs[2u * i + 3u] = 0u;
  }
}
