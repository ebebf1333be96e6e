// Before the steps of a multi-token-prediction head in a drafted step. Its first step runs the tokens that the step before picked, after
// the hidden states of the positions before each of them; what follows them are rows whose results nothing reads.
//
// The head's sequence begins with the token after position `drafter_state[FIRST]`, and has one token less than the model's from there on.
// VOCAB is the head's. Its cursor begins at 0 in each drafted step. Dispatch: (1). After sampler.wgsl.

const FIRST = 7u;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  if (thread != 0u) {
    return;
  }
  let length = sequence_length(0u);
  let picks = max(state[PLACE], 1u);
  for (var i = 0u; i < POSITIONS; i++) {
    var token = 0u;
    if (i < picks) {
      token = sequence_token(0u, length - picks + i);
    }
    drafter_inputs[2u * i] = select(token, 0u, token >= VOCAB);
    drafter_inputs[2u * i + 1u] = 0u;
  }
  drafter_state[0] = state[0] - picks - drafter_state[FIRST];
  drafter_state[1] = 0u;
  drafter_state[2] = 0u;
}
