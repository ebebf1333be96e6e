// A row vector times a dense matrix (GEMV): y[FIRST + n] = sum over k of x[k] * W[k][n], fused with the operations around it,
// as its bindings and flags show.
//
// W as ONNX's MatMul has it, [K, N] row by row, of the type of x. Products and sums are float32. With gamma, x is
// x / sqrt(mean(x^2) + EPSILON) * gamma. After the product, in this order: + bias[n], of W_up + bias_up[n]; what
// product_epilogue.wgsl computes; + residual[n]; + second[n].
//
// COLUMNS neighbours load neighbouring 16 bytes of a row. SPAN threads share these columns; each takes every SPAN-th
// run of four rows. Their sums are added by shuffles, then, if SPLIT, in workgroup memory, where one thread finishes
// each column. The sum of squares of a norm is added along with them, so there is one barrier at most.
// PAIRED: the products by weights and by weights_up follow each other in y, without a gate or a bias.
// Dispatch: (column vectors / COLUMNS, rounded up, 1, 1).
// WIDE: columns in 16 bytes. WIDTH: how many of a column's threads are in one subgroup; HALVINGS = log2 of that.
// Limits: K a multiple of 4, N of WIDE; not weights_up with ACTIVATED. With subgroups COLUMNS * WIDTH is LANES, threads
// numbered along their subgroups; else WIDTH is 1. SPLIT where SPAN is more than WIDTH.

alias Word = Row;

#include packing
#include dense_columns
#include product_epilogue

const RUNS: u32 = K / 4u;
const WORKGROUP: u32 = COLUMNS * SPAN;
const PARTS: u32 = SPAN / WIDTH;

const VECTORS: u32 = N / WIDE;
const STRIP: u32 = COLUMNS * WIDE; // columns of a workgroup

#reads x: array<Four>
#reads gamma?: array<Four>

#if SPLIT
var<workgroup> parts: array<f32, PARTS * STRIP>;
#if weights_up
var<workgroup> parts_up: array<f32, PARTS * STRIP>;
#endif
#if gamma
var<workgroup> squares: array<f32, PARTS>;
#endif
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = thread % COLUMNS;
  let member = thread / COLUMNS;
  let vector = group.x * COLUMNS + column;
  let at = min(vector, VECTORS - 1u);

  var sums = Sums();
#if weights_up
  var sums_up = Sums();
#endif
#if gamma
  var squared = 0.0;
#endif
  for (var run = member; run < RUNS; run += SPAN) {
    let first = 4u * run * VECTORS + at;
    let a = weights[first];
    let b = weights[first + VECTORS];
    let c = weights[first + 2u * VECTORS];
    let d = weights[first + 3u * VECTORS];
#if weights_up
    let e = weights_up[first];
    let f = weights_up[first + VECTORS];
    let g = weights_up[first + 2u * VECTORS];
    let h = weights_up[first + 3u * VECTORS];
#endif
    var values = four(x[run]);
#if gamma
    squared += dot(values, values);
    values *= four(gamma[run]);
#endif
    sums += (wide(a) * values.x + wide(b) * values.y) + (wide(c) * values.z + wide(d) * values.w);
#if weights_up
    sums_up += (wide(e) * values.x + wide(f) * values.y) + (wide(g) * values.z + wide(h) * values.w);
#endif
  }

#if SUBGROUPS
#repeat i HALVINGS
  let mask = COLUMNS << i;
  sums += shuffled(sums, mask);
#if weights_up
  sums_up += shuffled(sums_up, mask);
#endif
#if gamma
  squared += subgroupShuffleXor(squared, mask);
#endif
#end
#endif

#if SPLIT
  if (member % WIDTH == 0u) {
    let part = member / WIDTH;
#repeat j WIDE
    parts[part * STRIP + column * WIDE + j] = column_sum(sums, j);
#if weights_up
    parts_up[part * STRIP + column * WIDE + j] = column_sum(sums_up, j);
#endif
#end
#if gamma
    if (column == 0u) {
      squares[part] = squared;
    }
#endif
  }
  workgroupBarrier();
#if gamma
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
#if weights_up
        up += parts_up[part * STRIP + j];
#endif
      }
#if gamma
      sum *= inverse;
      up *= inverse;
#endif
#if PAIRED
      y[FIRST + n] = element(sum);
      y[FIRST + N + n] = element(up);
#else
      y[FIRST + n] = finished(n, n, sum, up);
#endif
    }
  }
#else
  if (member > 0u || vector >= VECTORS) {
    return;
  }
#if gamma
  let inverse = inverseSqrt(squared / f32(K) + EPSILON);
  sums *= inverse;
#if weights_up
  sums_up *= inverse;
#endif
#endif
#repeat j WIDE
  let n = vector * WIDE + j;
#if PAIRED
  y[FIRST + n] = element(column_sum(sums, j));
  y[FIRST + N + n] = element(column_sum(sums_up, j));
#else
#if weights_up
  y[FIRST + n] = finished(n, n, column_sum(sums, j), column_sum(sums_up, j));
#else
  y[FIRST + n] = finished(n, n, column_sum(sums, j), 0.0);
#endif
#endif
#end
#endif
}
