// Copies WORDS words.
//
// Dispatch: (x, y), an invocation for each word, WIDE of them in x.

#reads x: array<u32>
#writes y: array<u32>

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let word = id.x + id.y * WIDE;
  if (word < WORDS) {
    y[word] = x[word];
  }
}
