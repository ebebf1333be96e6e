// Rows of a matrix as int8, for matmul_q4.wgsl: each run of 32 elements with a scale that maps its largest to 127, or,
// GROUPED, the largest of its group of 4 runs, as onnxruntime-web has it.
//
// Half r of a run, 16 elements, is words[r * M + row]; of eight elements the even ones share a word, then the odd ones,
// as the nibbles of int4 weights unpack. factors[run * M + row] is a sixteenth of the scale, as W is unpacked as 16 q.
// Dispatch: (ceil(M / 8), ceil(K / 256), 1). Bindings: x, words, factors. K a multiple of 32, of 128 if
// GROUPED.

const RUNS: u32 = K / 32u;

#if HALF
alias Eight = vec4<u32>;
#else
alias Eight = mat2x4<f32>;
#endif

#reads x: array<Eight>
#writes words: array<vec4<u32>>
#writes factors: array<f32>

// Eight elements as (0, 2, 4, 6) and (1, 3, 5, 7).
fn dealt(e: Eight) -> mat2x4<f32> {
#if HALF
  let a = unpack2x16float(e.x);
  let b = unpack2x16float(e.y);
  let c = unpack2x16float(e.z);
  let d = unpack2x16float(e.w);
  return mat2x4<f32>(a.x, b.x, c.x, d.x, a.y, b.y, c.y, d.y);
#else
  return mat2x4<f32>(e[0].x, e[0].z, e[1].x, e[1].z, e[0].y, e[0].w, e[1].y, e[1].w);
#endif
}

fn largest(e: mat2x4<f32>) -> f32 {
  let m = max(abs(e[0]), abs(e[1]));
  return max(max(m.x, m.y), max(m.z, m.w));
}

fn packed(e: mat2x4<f32>, scale: f32) -> vec2<u32> {
  return vec2<u32>(pack4xI8(vec4<i32>(round(e[0] * scale))), pack4xI8(vec4<i32>(round(e[1] * scale))));
}

#if GROUPED
var<workgroup> largest_of: array<f32, 64>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.x * 8u + thread % 8u;
  let run = group.y * 8u + thread / 8u;
  let at = (min(row, M - 1u) * RUNS + min(run, RUNS - 1u)) * 4u;
  let a = dealt(x[at]);
  let b = dealt(x[at + 1u]);
  let c = dealt(x[at + 2u]);
  let d = dealt(x[at + 3u]);
  var most = max(max(largest(a), largest(b)), max(largest(c), largest(d)));
#if GROUPED
  largest_of[thread] = most;
  workgroupBarrier();
  let first = thread / 32u * 32u + thread % 8u;
  most = max(max(largest_of[first], largest_of[first + 8u]), max(largest_of[first + 16u], largest_of[first + 24u]));
#endif
  if (row >= M || run >= RUNS) {
    return;
  }
  let scale = select(0.0, 127.0 / most, most > 1e-30);
  words[2u * run * M + row] = vec4<u32>(packed(a, scale), packed(b, scale));
  words[(2u * run + 1u) * M + row] = vec4<u32>(packed(c, scale), packed(d, scale));
  factors[run * M + row] = most / (127.0 * 16.0);
}
