// A few rows times a dense matrix: y[m][FIRST + n] = sum over k of x[m][k] * W[k][n], fused with the operations after it.
//
// W as ONNX's MatMul has it, [K, N] row by row, of the type of x, which is [M, K]; a weight is loaded once for TALL rows
// of x. Products and sums are float32. After the product: + bias[n], of W_up + bias_up[n]; what product_epilogue.wgsl
// computes, with up by up[m][n]; + residual[m][n]; + second[m][n].
//
// COLUMNS neighbours load neighbouring 16 bytes of a row of W. SPAN threads share these columns; each takes every
// SPAN-th run of four rows. Their sums are added by shuffles, then in workgroup memory, a row of x at a time, where one
// thread finishes each column.
// PAIRED: the products by weights and by weights_up follow each other in a row of y, without a gate or a bias.
// Dispatch: (column vectors / COLUMNS, rounded up, ceil(M / TALL), 1).
// WIDE: columns in 16 bytes. WIDTH: how many of a column's threads are in one subgroup; HALVINGS = log2 of that.
// LINES = 1, 2 with weights_up; SUMS = LINES * TALL. OF: elements of a row of y.
// Limits: K a multiple of 4, N of WIDE. With subgroups COLUMNS * WIDTH is LANES, threads numbered along their subgroups;
// else WIDTH is 1.

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

var<workgroup> parts: array<f32, LINES * PARTS * STRIP>; // of one row of x

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = thread % COLUMNS;
  let member = thread / COLUMNS;
  let at = min(group.x * COLUMNS + column, VECTORS - 1u);
  let top = group.y * TALL;

  var sums = array<Sums, SUMS>();
  for (var run = member; run < RUNS; run += SPAN) {
    let first = 4u * run * VECTORS + at;
    let a = wide(weights[first]);
    let b = wide(weights[first + VECTORS]);
    let c = wide(weights[first + 2u * VECTORS]);
    let d = wide(weights[first + 3u * VECTORS]);
#if weights_up
    let e = wide(weights_up[first]);
    let f = wide(weights_up[first + VECTORS]);
    let g = wide(weights_up[first + 2u * VECTORS]);
    let h = wide(weights_up[first + 3u * VECTORS]);
#endif
#repeat m TALL
    let values = four(x[min(top + m, M - 1u) * RUNS + run]);
    sums[m] += (a * values.x + b * values.y) + (c * values.z + d * values.w);
#if weights_up
    sums[TALL + m] += (e * values.x + f * values.y) + (g * values.z + h * values.w);
#endif
#end
  }

#if SUBGROUPS
#repeat i HALVINGS
#repeat s SUMS
  sums[s] += shuffled(sums[s], COLUMNS << i);
#end
#end
#endif

#repeat m TALL
  if (member % WIDTH == 0u) {
    let part = member / WIDTH;
#repeat j WIDE
    parts[part * STRIP + column * WIDE + j] = column_sum(sums[m], j);
#if weights_up
    parts[(PARTS + part) * STRIP + column * WIDE + j] = column_sum(sums[TALL + m], j);
#endif
#end
  }
  workgroupBarrier();
  for (var j = thread; j < STRIP; j += WORKGROUP) {
    let n = group.x * STRIP + j;
    if (n < N && top + m < M) {
      var product = 0.0;
      var other = 0.0;
      for (var part = 0u; part < PARTS; part++) {
        product += parts[part * STRIP + j];
#if weights_up
        other += parts[(PARTS + part) * STRIP + j];
#endif
      }
#if PAIRED
      y[(top + m) * OF + FIRST + n] = element(product);
      y[(top + m) * OF + FIRST + N + n] = element(other);
#else
      y[(top + m) * OF + FIRST + n] = finished(n, (top + m) * N + n, product, other);
#endif
    }
  }
  workgroupBarrier();
#end
}
