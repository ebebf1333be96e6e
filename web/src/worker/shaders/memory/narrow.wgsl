// Puts float32 of a data file into a buffer as float16, each the nearest one.
//
// Dispatch: (x, y), an invocation for each word of the result, `invocations` of them in x.
// Bindings: uniforms, source, narrowed. Limits: an even number of elements. After half.wgsl.

struct Params {
  words: u32, // of the result
  at: u32, // word of `narrowed` where the result begins
  invocations: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> narrowed: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let word = id.x + id.y * params.invocations;
  if (word < params.words) {
    narrowed[params.at + word] = narrow(source[2u * word]) | (narrow(source[2u * word + 1u]) << 16u);
  }
}
