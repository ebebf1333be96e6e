// Puts a matrix of a data file into a matrix with longer rows, next to others: its row i begins at word at + i * stride.
//
// Dispatch: (x, y), an invocation for each word of the matrix, `invocations` of them in x.
// Bindings: uniforms, source, placed. Limits: rows of both matrices are whole words.

struct Params {
  words: u32,
  row: u32, // words
  stride: u32,
  at: u32,
  invocations: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> placed: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let word = id.x + id.y * params.invocations;
  if (word < params.words) {
    placed[params.at + word / params.row * params.stride + word % params.row] = source[word];
  }
}
