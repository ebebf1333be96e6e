// After a head's step: the hidden state that its next step reads. After its first step in a drafted step that is the row of the
// sequence's last token, after the others the only row.
//
// Dispatch: (words of `hidden_row` / WG). After sampler.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let size = arrayLength(&hidden_row);
  let row = select(0u, max(state[PLACE], 1u) - 1u, POSITIONS > 1u);
  if (id.x < size) {
    hidden_row[id.x] = hidden_rows[row * size + id.x];
  }
}
