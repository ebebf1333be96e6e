// A row vector times a dense matrix: y[n] = sum over k of x[k] * W[k][n], with what surrounds it in a decoder fused in.
//
// W as ONNX's MatMul has it, [K, N] row by row, of the type of x. Sums are float32.
// NORM: x is x / sqrt(mean(x^2) + EPSILON) * gamma. RESIDUAL: + residual[n].
// GATED: y[n] = silu(x.W[n]) * (x.W_up[n]).
//
// COLUMNS neighbours load neighbouring 16 bytes of a row; SPAN of them share these columns, each of which takes every
// SPAN-th run of four rows. Their sums meet by shuffles, then in workgroup memory (SPLIT: unless they are one, or all
// in one subgroup). The sum of squares of a norm meets with them, so that there is one barrier at most.
// Dispatch: (column vectors / COLUMNS, rounded up, 1, 1).
// Bindings, those whose condition holds: x, weights, gamma, residual, weights_up, y.
// WIDTH: how many of a column's threads meet by shuffles; HALVINGS = log2 of that.
// Limits: K a multiple of 4, N of 4, with HALF of 8; GATED without RESIDUAL. With subgroups COLUMNS * WIDTH is LANES,
// threads numbered along their subgroups; else WIDTH is 1.

const RUNS: u32 = K / 4u;
const WORKGROUP: u32 = COLUMNS * SPAN;
const PARTS: u32 = SPAN / WIDTH;

// Four rows of x, 16 bytes of a row of W, and the sums of as many columns.
#if HALF
alias Four = vec2<u32>;
alias Row = vec4<u32>;
alias Sums = mat2x4<f32>;
const VECTORS: u32 = N / 8u;
#else
alias Four = vec4<f32>;
alias Row = vec4<f32>;
alias Sums = vec4<f32>;
const VECTORS: u32 = N / 4u;
#endif

@group(0) @binding(next) var<storage, read> x: array<Four>;
@group(0) @binding(next) var<storage, read> weights: array<Row>;
#if NORM
@group(0) @binding(next) var<storage, read> gamma: array<Four>;
#endif
#if RESIDUAL
@group(0) @binding(next) var<storage, read> residual: array<vec4<element>>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> weights_up: array<Row>;
#endif
@group(0) @binding(next) var<storage, read_write> y: array<vec4<element>>;

#if SPLIT
var<workgroup> parts: array<Sums, COLUMNS * PARTS>;
#if GATED
var<workgroup> parts_up: array<Sums, COLUMNS * PARTS>;
#endif
#if NORM
var<workgroup> squares: array<f32, PARTS>;
#endif
#endif

#if HALF
fn halves(word: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<vec2<f16>>(word));
}

fn four(words: Four) -> vec4<f32> {
  return vec4<f32>(halves(words.x), halves(words.y));
}

fn wide(row: Row) -> Sums {
  return Sums(four(row.xy), four(row.zw));
}
#else
fn four(values: Four) -> vec4<f32> {
  return values;
}

fn wide(row: Row) -> Sums {
  return row;
}
#endif

#if SUBGROUPS
fn shuffled(sums: Sums, mask: u32) -> Sums {
#if HALF
  return Sums(subgroupShuffleXor(sums[0], mask), subgroupShuffleXor(sums[1], mask));
#else
  return subgroupShuffleXor(sums, mask);
#endif
}
#endif

#if GATED
fn gated(gate: vec4<f32>, up: vec4<f32>) -> vec4<element> {
  return vec4<element>(gate / (1.0 + exp(-gate)) * up);
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = thread % COLUMNS;
  let member = thread / COLUMNS;
  let wanted = group.x * COLUMNS + column;
  let at = min(wanted, VECTORS - 1u);

  var sums = Sums();
#if GATED
  var sums_up = Sums();
#endif
  var squared = 0.0;
  for (var run = member; run < RUNS; run += SPAN) {
    let first = 4u * run * VECTORS + at;
    let a = weights[first];
    let b = weights[first + VECTORS];
    let c = weights[first + 2u * VECTORS];
    let d = weights[first + 3u * VECTORS];
#if GATED
    let e = weights_up[first];
    let f = weights_up[first + VECTORS];
    let g = weights_up[first + 2u * VECTORS];
    let h = weights_up[first + 3u * VECTORS];
#endif
    var values = four(x[run]);
#if NORM
    squared += dot(values, values);
    values *= four(gamma[run]);
#endif
    sums += (wide(a) * values.x + wide(b) * values.y) + (wide(c) * values.z + wide(d) * values.w);
#if GATED
    sums_up += (wide(e) * values.x + wide(f) * values.y) + (wide(g) * values.z + wide(h) * values.w);
#endif
  }

#if SUBGROUPS
#repeat i HALVINGS
  let mask = COLUMNS << i;
  sums += shuffled(sums, mask);
#if GATED
  sums_up += shuffled(sums_up, mask);
#endif
#if NORM
  squared += subgroupShuffleXor(squared, mask);
#endif
#end
#endif
#if SPLIT
  if (member % WIDTH == 0u) {
    let part = member / WIDTH;
    parts[part * COLUMNS + column] = sums;
#if GATED
    parts_up[part * COLUMNS + column] = sums_up;
#endif
#if NORM
    if (column == 0u) {
      squares[part] = squared;
    }
#endif
  }
  workgroupBarrier();
#endif
  if (member > 0u || wanted >= VECTORS) {
    return;
  }
#if SPLIT
  for (var part = 1u; part < PARTS; part++) {
    sums += parts[part * COLUMNS + column];
#if GATED
    sums_up += parts_up[part * COLUMNS + column];
#endif
#if NORM
    squared += squares[part];
#endif
  }
#endif
#if NORM
  let inverse = inverseSqrt(squared / f32(K) + EPSILON);
  sums *= inverse;
#if GATED
  sums_up *= inverse;
#endif
#endif

#if HALF
#repeat i 2
#if GATED
  y[2u * wanted + i] = gated(sums[i], sums_up[i]);
#else
#if RESIDUAL
  sums[i] += vec4<f32>(residual[2u * wanted + i]);
#endif
  y[2u * wanted + i] = vec4<element>(sums[i]);
#endif
#end
#else
#if GATED
  y[wanted] = gated(sums, sums_up);
#else
#if RESIDUAL
  sums += vec4<f32>(residual[wanted]);
#endif
  y[wanted] = vec4<element>(sums);
#endif
#endif
}
