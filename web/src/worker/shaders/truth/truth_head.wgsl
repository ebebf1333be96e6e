// The truth for the gates of heads, in float32, and a bound of its rounding errors, as in truth_gemv.wgsl: with gamma that of
// gated_head_norm.wgsl, else that of head_gate.wgsl.
//
// Constants and bindings: as there, of one row. Dispatch: (HEADS * HEAD / 64).

#reads x: array<element>
#reads gate?: array<element>
#reads gamma?: array<element>
#reads qkv?: array<element>
#writes truth: array<vec2<f32>>

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= HEADS * HEAD) {
    return;
  }
#if gamma
  var squares = 0.0;
  for (var j = 0u; j < HEAD; j++) {
    let value = f32(x[i / HEAD * HEAD + j]);
    squares += value * value;
  }
  let open = f32(gate[i]);
  let value = f32(x[i]) / sqrt(squares / f32(HEAD) + EPSILON) * f32(gamma[i % HEAD]) * open / (1.0 + exp(-open));
#else
  let open = f32(qkv[(2u * (i / HEAD) + 1u) * HEAD + i % HEAD]);
  let value = f32(x[i]) / (1.0 + exp(-open));
#endif
  // The sigmoid of a rounded number, and a few products.
  truth[i] = vec2<f32>(value, (4.0 + abs(open)) * abs(value));
}
