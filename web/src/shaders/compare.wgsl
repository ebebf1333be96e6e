// Compares two buffers of floats: the largest absolute difference, the largest absolute value of the second, and how
// many elements are finite in just one of the two. One invocation takes one u32 word: a float32, or two float16.
// Bindings: 0 a, 1 b (words); 2 result: [bits of max |a-b|, bits of max |b|, count]; 3 [words, is float16, row length, 0].
// Non-negative floats order as their bits do, hence atomicMax on bits. Limits: 65535 * 65535 * 64 words.

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<atomic<u32>, 3>;
@group(0) @binding(3) var<uniform> params: vec4<u32>;

fn finite32(bits: u32) -> bool {
  return (bits & 0x7f800000u) != 0x7f800000u;
}

fn finite16(bits: u32) -> bool {
  return (bits & 0x7c00u) != 0x7c00u;
}

fn note(x: f32, x_finite: bool, y: f32, y_finite: bool) {
  if (x_finite && y_finite) {
    atomicMax(&result[0], bitcast<u32>(abs(x - y)));
    atomicMax(&result[1], bitcast<u32>(abs(y)));
  } else if (x_finite != y_finite) {
    atomicAdd(&result[2], 1u);
  }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x + id.y * params.z;
  if (i >= params.x) {
    return;
  }
  let p = a[i];
  let q = b[i];
  if (params.y == 0u) {
    note(bitcast<f32>(p), finite32(p), bitcast<f32>(q), finite32(q));
  } else {
    let x = unpack2x16float(p);
    let y = unpack2x16float(q);
    note(x.x, finite16(p), y.x, finite16(q));
    note(x.y, finite16(p >> 16u), y.y, finite16(q >> 16u));
  }
}
