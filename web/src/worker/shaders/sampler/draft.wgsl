// Before a drafted step of one sequence: finds what followed its last tokens where they stood before, the latest such place, and makes
// it the drafts. The step's inputs are the last token and the drafts; where there is no draft, NO_TOKEN, which no pick is, and input 0.
//
// Dispatch: (1). After sampler.wgsl.

var<workgroup> behind: atomic<u32>; // the position after the place; 0 if there is none

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  let length = sequence_length(0u);
  let size = params.draft_after;
  for (var first = thread; first + size < length; first += WG) {
    var i = 0u;
    while (i < size && sequence_token(0u, first + i) == sequence_token(0u, length - size + i)) {
      i++;
    }
    if (i == size) {
      atomicMax(&behind, first + size);
    }
  }
  workgroupBarrier();
  if (thread != 0u) {
    return;
  }
  state[PLACE] = 0u;
  state[REFUSED] = 0u;
  inputs[0] = sequence_token(0u, length - 1u);
  inputs[1] = 0u;
  let at = atomicLoad(&behind);
  for (var i = 0u; i + 1u < POSITIONS; i++) {
    var token = NO_TOKEN;
    if (at != 0u && at + i < length) {
      token = sequence_token(0u, at + i);
    } else if (at != 0u && params.chained != 0u) {
      token = memory[draft_slot(at + i - length)];
    }
    memory[draft_slot(i)] = token;
    inputs[2u * i + 2u] = select(token, 0u, token == NO_TOKEN);
    inputs[2u * i + 3u] = 0u;
  }
}
