// Compares two buffers of floats: the largest absolute difference, the largest absolute value of the second, how many
// elements are finite in just one of the two, and the sums of the squares of differences and of values of the second. A
// word is a float32, two float16, or one of a row of a quantized cache: the scale, or elements of 8 or 4 bits. An
// invocation takes every params.z-th of them.
// Bindings: 0 a, 1 b (words); 2 result: [bits of max |a-b|, bits of max |b|, count]; 3 params: [words, kind of the
// elements (0 float32, 1 float16, 2 int8, 3 int4), invocations, words of a row of a quantized cache, else how many float16
// there are: half of the last word may be none]; 4 sums: of squares, of each workgroup.
// Non-negative floats order as their bits do, hence atomicMax on bits.

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<atomic<u32>, 3>;
@group(0) @binding(3) var<uniform> params: vec4<u32>;
@group(0) @binding(4) var<storage, read_write> sums: array<vec2<f32>>;

const WORKGROUP = 64u;
// An element of 4 bits is one of these times its row's scale, in onnxruntime's WebGPU provider.
const LEVELS = array<f32, 16>(
  -0.2377, -0.1809, -0.1419, -0.1104, -0.0829, -0.0578, -0.0342, -0.0113,
  0.0113, 0.0342, 0.0578, 0.0829, 0.1104, 0.1419, 0.1809, 0.2377);

var<workgroup> parts: array<vec2<f32>, WORKGROUP>;

fn finite32(bits: u32) -> bool {
  return (bits & 0x7f800000u) != 0x7f800000u;
}

fn finite16(bits: u32) -> bool {
  return (bits & 0x7c00u) != 0x7c00u;
}

struct Found {
  apart: f32,
  largest: f32,
  unlike: u32,
  squares: vec2<f32>,
}

fn noted(found: Found, x: f32, x_finite: bool, y: f32, y_finite: bool) -> Found {
  if (x_finite && y_finite) {
    let apart = abs(x - y);
    let squares = found.squares + vec2<f32>(apart * apart, y * y);
    return Found(max(found.apart, apart), max(found.largest, abs(y)), found.unlike, squares);
  }
  return Found(found.apart, found.largest, found.unlike + select(0u, 1u, x_finite != y_finite), found.squares);
}

// Element i of a word of a quantized cache.
fn element_of(word: u32, i: u32, scale: f32) -> f32 {
  if (params.y == 2u) {
    return (f32(extractBits(word, 8u * i, 8u)) - 128.0) * scale;
  }
  var levels = LEVELS;
  return levels[extractBits(word, 4u * i, 4u)] * scale;
}

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(global_invocation_id) id: vec3<u32>,
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  var found = Found();
  for (var i = id.x; i < params.x; i += params.z) {
    let p = a[i];
    let q = b[i];
    if (params.y == 0u) {
      found = noted(found, bitcast<f32>(p), finite32(p), bitcast<f32>(q), finite32(q));
    } else if (params.y > 1u) {
      let row = i - i % params.w;
      let known = vec2<bool>(finite32(a[row]), finite32(b[row]));
      let scales = vec2<f32>(bitcast<f32>(a[row]), bitcast<f32>(b[row]));
      let elements = select(4u, 8u, params.y == 3u);
      for (var e = 0u; i > row && e < elements; e++) {
        found = noted(found, element_of(p, e, scales.x), known.x, element_of(q, e, scales.y), known.y);
      }
    } else {
      let x = unpack2x16float(p);
      let y = unpack2x16float(q);
      found = noted(found, x.x, finite16(p), y.x, finite16(q));
      if (2u * i + 1u < params.w) {
        found = noted(found, x.y, finite16(p >> 16u), y.y, finite16(q >> 16u));
      }
    }
  }
  atomicMax(&result[0], bitcast<u32>(found.apart));
  atomicMax(&result[1], bitcast<u32>(found.largest));
  if (found.unlike > 0u) {
    atomicAdd(&result[2], found.unlike);
  }
  parts[thread] = found.squares;
  workgroupBarrier();
  if (thread == 0u) {
    var sum = vec2<f32>();
    for (var i = 0u; i < WORKGROUP; i++) {
      sum += parts[i];
    }
    sums[group.x] = sum;
  }
}
