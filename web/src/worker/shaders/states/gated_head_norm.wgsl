// The RMS norm of each head, times a gate: y = x / sqrt(mean(x^2) + EPSILON) * gamma * silu(gate).
//
// x, gate and y are [rows, HEADS * HEAD], gamma [HEAD]. A workgroup takes a head of a row. Dispatch: (HEADS, rows).

#reads x: array<element>
#reads gate: array<element>
#reads gamma: array<element>
#writes y: array<element>

var<workgroup> parts: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let at = (group.y * HEADS + group.x) * HEAD;
  var squares = 0.0;
  for (var i = thread; i < HEAD; i += 64u) {
    let value = f32(x[at + i]);
    squares += value * value;
  }
  parts[thread] = squares;
  workgroupBarrier();
  squares = 0.0;
  for (var i = 0u; i < 64u; i++) {
    squares += parts[i];
  }
  let inverse = inverseSqrt(squares / f32(HEAD) + EPSILON);
  for (var i = thread; i < HEAD; i += 64u) {
    let open = f32(gate[at + i]);
    y[at + i] = element(f32(x[at + i]) * inverse * f32(gamma[i]) * open / (1.0 + exp(-open)));
  }
}
