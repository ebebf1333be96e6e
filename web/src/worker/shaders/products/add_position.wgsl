// Learned positions: y[r] = x[r] + table[p], p the position of the new token of sequence r.
// Bindings: x, y [rows, K]; table [*, K]; state, eight words for each sequence, the first its length with the new token. ALONG: rows
// are positions of one sequence, the first at state[0] - 1. Dispatch: (ceil(K / 64), rows).

#reads x: array<element>
#reads table: array<element>
#reads state: array<u32>
#writes y: array<element>

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
#if ALONG
  let length = state[0] + id.y;
#else
  let length = state[8u * id.y];
#endif
  if (id.x < K) {
    // A row without a sequence has length 0.
    y[id.y * K + id.x] = x[id.y * K + id.x] + table[(max(length, 1u) - 1u) * K + id.x];
  }
}
