// A row vector times a dense matrix (GEMV): y[n] = sum over k of x[k] * W[k][n], fused with the operations around it.
//
// W as ONNX's MatMul has it, [K, N] row by row, of the type of x. Products and sums are float32.
// NORM: x is x / sqrt(mean(x^2) + EPSILON) * gamma.
// Behind the product, in this order: BIAS: + bias[n]. GATED: y[n] = silu(x.W[n]) * (x.W_up[n]), BIAS: of W_up too;
// ACTIVATED: silu(x.W[n]). GELU: GELU in place of SiLU; POWER: max(x.W[n], 0) ^ exponent[0]. FACTOR: * factor[0];
// DIVIDED: / factor[0]; CAPPED: tanh(y / factor[0]) * factor[0]. RESIDUAL: + residual[n]. SECOND: + second[n].
//
// COLUMNS neighbours load neighbouring 16 bytes of a row. SPAN threads share these columns; each takes every SPAN-th
// run of four rows. Their sums are added by shuffles, then, if SPLIT, in workgroup memory, where one thread finishes
// each column. The sum of squares of a norm is added along with them, so there is one barrier at most.
// Dispatch: (column vectors / COLUMNS, rounded up, 1, 1).
// Bindings, those whose condition holds: x, weights, gamma, residual, second, bias, exponent, factor, weights_up, bias_up,
// y.
// WIDE: columns in 16 bytes. WIDTH: how many of a column's threads are in one subgroup; HALVINGS = log2 of that.
// Limits: K a multiple of 4, N of WIDE; GATED and ACTIVATED not at once. With subgroups COLUMNS * WIDTH is LANES, threads
// numbered along their subgroups; else WIDTH is 1. SPLIT where SPAN is more than WIDTH.
// After dense_columns.wgsl and behind_product.wgsl.

const RUNS: u32 = K / 4u;
const WORKGROUP: u32 = COLUMNS * SPAN;
const PARTS: u32 = SPAN / WIDTH;

const VECTORS: u32 = N / WIDE;
const STRIP: u32 = COLUMNS * WIDE; // columns of a workgroup

@group(0) @binding(next) var<storage, read> x: array<Four>;
@group(0) @binding(next) var<storage, read> weights: array<Row>;
#if NORM
@group(0) @binding(next) var<storage, read> gamma: array<Four>;
#endif
#if RESIDUAL
@group(0) @binding(next) var<storage, read> residual: array<element>;
#endif
#if SECOND
@group(0) @binding(next) var<storage, read> second: array<element>;
#endif
#if BIAS
@group(0) @binding(next) var<storage, read> bias: array<element>;
#endif
#if POWER
@group(0) @binding(next) var<storage, read> exponent: array<i32>;
#endif
#if FACTOR
@group(0) @binding(next) var<storage, read> factor: array<element>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> weights_up: array<Row>;
#if BIAS
@group(0) @binding(next) var<storage, read> bias_up: array<element>;
#endif
#endif
@group(0) @binding(next) var<storage, read_write> y: array<element>;

#if SPLIT
var<workgroup> parts: array<f32, PARTS * STRIP>;
#if GATED
var<workgroup> parts_up: array<f32, PARTS * STRIP>;
#endif
#if NORM
var<workgroup> squares: array<f32, PARTS>;
#endif
#endif

// The result behind the product: `sum` belongs to column n, `sum_up` to the other half of a gated layer.
fn finished(n: u32, sum: f32, sum_up: f32) -> element {
  var product = sum;
  var other = sum_up;
#if BIAS
  product += f32(bias[n]);
#if GATED
  other += f32(bias_up[n]);
#endif
#endif
  var value = behind_product(product, other);
#if RESIDUAL
  value += f32(residual[n]);
#endif
#if SECOND
  value += f32(second[n]);
#endif
  return element(value);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = thread % COLUMNS;
  let member = thread / COLUMNS;
  let vector = group.x * COLUMNS + column;
  let at = min(vector, VECTORS - 1u);

  var sums = Sums();
#if GATED
  var sums_up = Sums();
#endif
#if NORM
  var squared = 0.0;
#endif
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
#repeat j WIDE
    parts[part * STRIP + column * WIDE + j] = column_sum(sums, j);
#if GATED
    parts_up[part * STRIP + column * WIDE + j] = column_sum(sums_up, j);
#endif
#end
#if NORM
    if (column == 0u) {
      squares[part] = squared;
    }
#endif
  }
  workgroupBarrier();
#if NORM
  var all_squares = 0.0;
  for (var part = 0u; part < PARTS; part++) {
    all_squares += squares[part];
  }
  let inverse = inverseSqrt(all_squares / f32(K) + EPSILON);
#endif
  for (var j = thread; j < STRIP; j += WORKGROUP) {
    let n = group.x * STRIP + j;
    if (n < N) {
      var sum = 0.0;
      var up = 0.0;
      for (var part = 0u; part < PARTS; part++) {
        sum += parts[part * STRIP + j];
#if GATED
        up += parts_up[part * STRIP + j];
#endif
      }
#if NORM
      sum *= inverse;
      up *= inverse;
#endif
      y[n] = finished(n, sum, up);
    }
  }
#else
  if (member > 0u || vector >= VECTORS) {
    return;
  }
#if NORM
  let inverse = inverseSqrt(squared / f32(K) + EPSILON);
  sums *= inverse;
#if GATED
  sums_up *= inverse;
#endif
#endif
#repeat j WIDE
  let n = vector * WIDE + j;
#if GATED
  y[n] = finished(n, column_sum(sums, j), column_sum(sums_up, j));
#else
  y[n] = finished(n, column_sum(sums, j), 0.0);
#endif
#end
#endif
}
