// Each head of an attention's result, times the sigmoid of its gate, which follows the head's query in the packed q, k and v.
//
// x and y are [rows, HEADS * HEAD]; qkv is [rows, WIDTH], each row beginning with HEAD elements of a query and HEAD of a gate for each
// head. Dispatch: (ceil(HEADS * HEAD / 64), rows).

#reads x: array<element>
#reads qkv: array<element>
#writes y: array<element>

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i < HEADS * HEAD) {
    let gate = f32(qkv[id.y * WIDTH + (2u * (i / HEAD) + 1u) * HEAD + i % HEAD]);
    let at = id.y * HEADS * HEAD + i;
    y[at] = element(f32(x[at]) / (1.0 + exp(-gate)));
  }
}
