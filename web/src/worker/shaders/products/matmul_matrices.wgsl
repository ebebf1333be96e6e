// A matrix times an int4, int8 or dense float16 matrix by subgroup matrices: y[m][n] = sum over k of W[n][k] * x[m][k].
//
// x is float16, [M, K]. Without scales, W is float16 as ONNX's MatMul has it, [K, N]; else int4 or (BYTES) int8 as in
// packing.wgsl, rounded to float16 once as (q - zero) * scale + minimum. Products are exact in the float32 that adds
// them up.
// With weights_up, y[m][n] = silu(W[n].x[m]) * (W_up[n].x[m]). + bias[n], then, if ACTIVATED, the activation of that;
// + residual[m][n].
//
// A matrix operation of a subgroup takes SIZE_M rows, SIZE_N columns and SIZE_K of k; a subgroup makes MM by MN of them
// (the first half of MN for W, the other for any W_up), a workgroup WM by WN times that. It goes over k in steps
// of STEP elements, staged in workgroup memory, the next step's being loaded while the present one's are multiplied. WK
// subgroups share such a tile, each with its part of every step, and their results are added at last: a few rows of x
// leave too few tiles else.
// Eight elements of k are staged as (0, 4, 1, 5, 2, 6, 3, 7) in both operands of int4, as nibbles unpack, and as
// (0, 2, 1, 3, 4, 6, 5, 7) in those of int8.
// Dispatch: (ceil(N / columns), ceil(M / rows), 1).
// Counts that follow from the others: A_LOADS, B_LOADS = what a thread loads of x (eight elements) and of W (eight
// elements without scales, else sixteen) a step; MATRICES = MM * MN; HALF_MN = MN / 2; K_PARTS = STEP / SIZE_K / WK; OUT = matrices
// of a subgroup side by side in y.
// Limits: K a multiple of 8 (with scales and blocks of 16, of STEP), STEP of 32 and SIZE_K; BLOCK a multiple of 16; N a multiple of 8; MN even with
// weights_up; LANES threads in every subgroup, numbered along it. Workgroup memory for the results of a subgroup's two
// matrices fits in what is staged.

// With scales, sixteen elements of a row.
#if scales
#if BYTES
alias Word = vec4<u32>;
#else
alias Word = vec2<u32>;
#endif
#else
alias Word = vec4<u32>;
#endif
#include packing

const TILE_M: u32 = SIZE_M * MM * WM;
const TILE_N: u32 = SIZE_N * MN * WN;
const TILE_WARPS: u32 = WM * WN;
const WORKGROUP: u32 = LANES * TILE_WARPS * WK;
const STEPS: u32 = (K + STEP - 1u) / STEP;
const RAGGED = K % STEP != 0u; // whether the last step has elements past K, which are zeros of x
const OCTETS: u32 = STEP / 8u;
const SPREAD: u32 = SIZE_N * MN; // slots of a subgroup
#if weights_up
const COLUMNS: u32 = TILE_N / 2u;
const OWN: u32 = SPREAD / 2u; // columns of y of a subgroup
#else
const COLUMNS: u32 = TILE_N;
const OWN: u32 = SPREAD;
#endif
// Octets of a row of what is staged: one more than it holds, so that neighbouring rows are in other banks.
const STRIDE_A: u32 = OCTETS + 1u;
#if !scales
const STRIDE_B: u32 = TILE_N / 8u + 1u; // [k][slot]
const B_SIZE: u32 = STEP * STRIDE_B;
#else
const STRIDE_B: u32 = OCTETS + 1u; // [slot][k]
const B_SIZE: u32 = TILE_N * STRIDE_B;
#endif
const A_SIZE: u32 = TILE_M * STRIDE_A;
const SIZE: u32 = A_SIZE + B_SIZE;

alias Octet = vec4<u32>;
alias Left = subgroup_matrix_left<f16, SIZE_K, SIZE_M>;
alias Right = subgroup_matrix_right<f16, SIZE_N, SIZE_K>;
alias Result = subgroup_matrix_result<f32, SIZE_N, SIZE_M>;

#reads x: array<Octet>
#reads bias?: array<Octet>
#reads residual?: array<Octet>
#writes y: array<Octet>

// Two steps, each x as [row][k], then W.
var<workgroup> staged: array<Octet, 2u * SIZE>;

struct Request {
  a: array<Octet, A_LOADS>,
  b: array<Word, B_LOADS>,
#if scales
  b_scales: array<element, B_LOADS>,
#if zeros
  b_zeros: array<u32, B_LOADS>, // the words that contain them
#endif
#if minima
  b_minima: array<element, B_LOADS>,
#endif
#endif
}

// The column of y for a slot of the tile.
fn column_of(first: u32, slot: u32) -> u32 {
  return first + slot / SPREAD * OWN + slot % OWN;
}

#if scales
// The row of W and the sixteen elements of it that a thread loads as its `at`-th.
fn part_of(step: u32, at: u32, column: u32) -> vec2<u32> {
  return vec2<u32>(min(column_of(column, at / (STEP / 16u)), N - 1u), step * (STEP / 16u) + at % (STEP / 16u));
}

#if zeros
// The index of the zero point of such a part, in zero points.
fn zero_at(part: vec2<u32>) -> u32 {
  return zero_of(part.x, part.y / (BLOCK / 16u));
}
#endif
#endif

fn request(step: u32, thread: u32, row: u32, column: u32) -> Request {
  var wanted: Request;
#repeat i A_LOADS
  let at = thread + i * WORKGROUP;
  let chunk = step * OCTETS + at % OCTETS;
  wanted.a[i] = x[min(row + at / OCTETS, M - 1u) * (K / 8u) + select(chunk, min(chunk, K / 8u - 1u), RAGGED)];
  wanted.a[i] = select(wanted.a[i], Octet(), vec4<bool>(RAGGED && chunk >= K / 8u));
#end
#repeat i B_LOADS
  let at = thread + i * WORKGROUP;
#if !scales
  let slot = at % (TILE_N / 8u) * 8u;
  let from_k = step * STEP + at / (TILE_N / 8u);
  let place = select(from_k, min(from_k, K - 1u), RAGGED) * (N / 8u) + min(column_of(column, slot), N - 8u) / 8u;
#else
  let slot = at / (STEP / 16u);
  let part = part_of(step, at, column);
  let place = part.x * (BLOCKS * (BLOCK / 16u)) + part.y;
  let scale = part.x * BLOCKS + part.y / (BLOCK / 16u);
#if zeros
  let zero = zero_at(part) / (32u / BITS);
#endif
#if minima
  let least = part.y / (BLOCK / 16u) * N + part.x;
#endif
#endif
#if weights_up
  if (slot % SPREAD >= OWN) {
    wanted.b[i] = weights_up[place];
#if scales
    wanted.b_scales[i] = scales_up[scale];
#if zeros
    wanted.b_zeros[i] = zeros_up[zero];
#endif
#if minima
    wanted.b_minima[i] = minima_up[least];
#endif
#endif
  } else {
#endif
    wanted.b[i] = weights[place];
#if scales
    wanted.b_scales[i] = scales[scale];
#if zeros
    wanted.b_zeros[i] = zeros[zero];
#endif
#if minima
    wanted.b_minima[i] = minima[least];
#endif
#endif
#if weights_up
  }
#endif
#end
  return wanted;
}

#if scales
#include packed_blocks
#else
fn dealt(o: Octet) -> Octet {
  return o;
}
#endif

#if ACTIVATED
#include activation

fn all_activated(x: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(activated(x.x), activated(x.y), activated(x.z), activated(x.w));
}
#endif

// Adds up four results of a tile, of which WK subgroups hold parts.
fn summed(at: u32) -> vec4<f32> {
  var sum = bitcast<vec4<f32>>(staged[at]);
  for (var p = 1u; p < WK; p++) {
    sum += bitcast<vec4<f32>>(staged[at + p * TILE_WARPS * (SIZE_M * SIZE_N / 2u)]);
  }
  return sum;
}

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) warp: u32,
) {
  let row = group.y * TILE_M;
  let column = group.x * COLUMNS;
  let lane = thread % LANES;
  let warp_m = warp % TILE_WARPS / WN;
  let warp_n = warp % WN;
  let warp_k = warp / TILE_WARPS;

  var sums = array<Result, MATRICES>();
  var wanted = request(0u, thread, row, column);
  for (var step = 0u; step < STEPS; step++) {
    let base = (step & 1u) * SIZE;
#repeat i A_LOADS
    let at = thread + i * WORKGROUP;
    staged[base + at / OCTETS * STRIDE_A + at % OCTETS] = dealt(wanted.a[i]);
#end
#repeat i B_LOADS
    let at = thread + i * WORKGROUP;
#if !scales
    staged[base + A_SIZE + at / (TILE_N / 8u) * STRIDE_B + at % (TILE_N / 8u)] = wanted.b[i];
#else
    let to = base + A_SIZE + at / (STEP / 16u) * STRIDE_B + at % (STEP / 16u) * 2u;
    var block: Block;
    block.scale = wanted.b_scales[i];
#if zeros
    block.zero = element(1024u + number_in(wanted.b_zeros[i], zero_at(part_of(step, at, column))));
#else
    block.zero = ZERO;
#endif
#if minima
    block.least = wanted.b_minima[i];
#endif
#if BYTES
    staged[to] = unpacked(wanted.b[i].xy, block);
    staged[to + 1u] = unpacked(wanted.b[i].zw, block);
#else
    staged[to] = unpacked(wanted.b[i].x, block);
    staged[to + 1u] = unpacked(wanted.b[i].y, block);
#endif
#endif
#end
    workgroupBarrier();
    wanted = request(min(step + 1u, STEPS - 1u), thread, row, column);

    let at_a = base + warp_m * (SIZE_M * MM) * STRIDE_A;
#if !scales
    let at_b = base + A_SIZE + warp_n * (SPREAD / 8u);
#else
    let at_b = base + A_SIZE + warp_n * SPREAD * STRIDE_B;
#endif
#repeat part K_PARTS
    let k = warp_k * K_PARTS + part;
    var rights: array<Right, MN>;
#repeat j MN
#if !scales
    let place = at_b + k * SIZE_K * STRIDE_B + j * (SIZE_N / 8u);
    rights[j] = subgroupMatrixLoad<Right, row_major>(&staged, place, STRIDE_B);
#else
    let place = at_b + j * SIZE_N * STRIDE_B + k * (SIZE_K / 8u);
    rights[j] = subgroupMatrixLoad<Right, col_major>(&staged, place, STRIDE_B);
#endif
#end
#repeat i MM
    let left = subgroupMatrixLoad<Left, row_major>(&staged, at_a + i * SIZE_M * STRIDE_A + k * (SIZE_K / 8u), STRIDE_A);
#repeat j MN
    sums[i * MN + j] = subgroupMatrixMultiplyAccumulate(left, rights[j], sums[i * MN + j]);
#end
#end
#end
  }

  // Each subgroup's results, a matrix or a gated pair of them at a time, through its part of what was staged; the
  // subgroups of a tile add them.
  const SHARE = SIZE_M * SIZE_N / 2u;
  let own = warp * SHARE;
  let first = warp % TILE_WARPS * SHARE;
#repeat i MM
#repeat j OUT
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&staged, own, sums[i * MN + j], SIZE_N / 4u);
#if weights_up
  subgroupMatrixStore<row_major>(&staged, own + SHARE / 2u, sums[i * MN + HALF_MN + j], SIZE_N / 4u);
#endif
  workgroupBarrier();
  for (var octet = warp_k * LANES + lane; octet < SIZE_M * SIZE_N / 8u; octet += LANES * WK) {
    var low = summed(first + 2u * octet);
    var high = summed(first + 2u * octet + 1u);
#if weights_up
    low = low / (1.0 + exp(-low)) * summed(first + SHARE / 2u + 2u * octet);
    high = high / (1.0 + exp(-high)) * summed(first + SHARE / 2u + 2u * octet + 1u);
#endif
    let m = row + (warp_m * MM + i) * SIZE_M + octet / (SIZE_N / 8u);
    let n = column + warp_n * OWN + j * SIZE_N + octet % (SIZE_N / 8u) * 8u;
    if (m < M && n < N) {
#if bias
      let added = bias[n / 8u];
      low += vec4<f32>(unpack2x16float(added.x), unpack2x16float(added.y));
      high += vec4<f32>(unpack2x16float(added.z), unpack2x16float(added.w));
#endif
#if ACTIVATED
      low = all_activated(low);
      high = all_activated(high);
#endif
#if residual
      let more = residual[(m * N + n) / 8u];
      low += vec4<f32>(unpack2x16float(more.x), unpack2x16float(more.y));
      high += vec4<f32>(unpack2x16float(more.z), unpack2x16float(more.w));
#endif
      y[(m * N + n) / 8u] = Octet(pack2x16float(low.xy), pack2x16float(low.zw), //
                                  pack2x16float(high.xy), pack2x16float(high.zw));
    }
  }
#end
#end
}
