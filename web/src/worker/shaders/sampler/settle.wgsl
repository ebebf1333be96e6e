// After a drafted step of a model with states: the state after the last token that is the sequence's becomes the one that the next step
// reads. `states` has the state after each position of the step, `past` the one before it.
//
// A step picks after each position whose token is the sequence's. Dispatch: (words of `past` / WG). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let picks = state[PLACE];
  let size = arrayLength(&past);
  if (picks != 0u && id.x < size) {
    past[id.x] = states[(picks - 1u) * size + id.x];
  }
}
