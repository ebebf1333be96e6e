// A few rows times a matrix in int4 or int8 by subgroup matrices: y[m][FIRST + n] = sum over k of W[n][k] * x[m][k], fused with the
// operations after it.
//
// x is float16, [M, K], y [M, OF]; W as packing.wgsl has it, rounded to float16 once as (q - zero) * scale + minimum. Products are
// exact in the float32 that adds them up. After the product: as few_rows_q4.wgsl has it.
//
// W is the left operand, so that rows of x come in eights where operations have eight columns. A subgroup makes MN matrices of SIZE_M
// rows of W (the second half of MN of W_up, if it is gated) by MM of SIZE_N rows of x. It has workgroup memory of its own for them. A
// thread requests runs of 32 elements, four neighbours those of a row, and brings half of each to that memory at a time. Beside each
// other lie octets of the same place in neighbouring runs: what a row of an operation takes, SIZE_K elements, is of two runs, in both operands.
// WN subgroups, side by side over rows of W, share x; WK such sets have parts of k each, and their results are added at last.
// Dispatch: (ceil(N / rows of y in WN subgroups), ceil(M / (MM * SIZE_N)), 1).
// Counts that follow from the others: LOADS = runs of W that a thread requests a step, X_LOADS = octets of x; MATRICES = MN * MM; CUTS =
// 16 / SIZE_K; PER = blocks that a run touches, 2 of BLOCK 16, WORDS its requests; SIZE = octets of workgroup memory: of W and x, or of all results.
// Limits: K a multiple of 32, BLOCK 16 or a multiple of 32, SIZE_K 8 or 16, MN even with weights_up; LANES threads in every
// subgroup, a multiple of 4, numbered along it.

alias Word = vec4<u32>;
#include packing
#include packed_blocks
#include product_epilogue

const TEAM: u32 = 4u; // threads with neighbouring runs of a row
const ROWS: u32 = LANES / TEAM; // rows of W for which a subgroup requests a run at once
const TILE: u32 = SIZE_M * MN;
#if weights_up
const OWN: u32 = TILE / 2u;
#else
const OWN: u32 = TILE;
#endif
const X_ROWS: u32 = SIZE_N * MM;
const RUNS: u32 = K / 32u;
const ROW_RUNS: u32 = BLOCKS * BLOCK / 32u; // runs from row to row of W
const STEPS: u32 = (RUNS + TEAM * WK - 1u) / (TEAM * WK);
// Octets from row to row of what is staged, one more than there are, so that neighbouring rows are in other banks.
const STRIDE: u32 = 2u * TEAM + 1u;
const X_STRIDE: u32 = 4u * TEAM + 1u;
const AREA: u32 = SIZE_M * SIZE_N / 4u;

alias Octet = vec4<u32>;
alias Left = subgroup_matrix_left<f16, SIZE_K, SIZE_M>;
alias Right = subgroup_matrix_right<f16, SIZE_N, SIZE_K>;
alias Result = subgroup_matrix_result<f32, SIZE_N, SIZE_M>;

#reads x: array<Octet>

var<workgroup> staged: array<Octet, SIZE>;

// A thread's loads of W; what belongs to blocks is at PER * load + block.
struct Request {
  words: array<Word, LOADS * WORDS>,
  factors: array<element, LOADS * PER>,
#if zeros
  zeros: array<element, LOADS * PER>, // with 1024 added
#endif
#if minima
  minima: array<element, LOADS * PER>,
#endif
}

fn request(step: u32, warp_k: u32, lane: u32, first: u32) -> Request {
  var wanted: Request;
  let run = (step * WK + warp_k) * TEAM + lane % TEAM;
  let there = run < RUNS;
  let start = min(run, RUNS - 1u);
#repeat i LOADS
  let slot = lane / TEAM + i * ROWS;
  let row = min(first + slot % OWN, N - 1u);
#if weights_up
  if (slot >= OWN) {
#repeat w WORDS
    wanted.words[i * WORDS + w] = weights_up[(row * ROW_RUNS + start) * WORDS + w];
#end
#repeat b PER
    let block = (start * 32u + b * 16u) / BLOCK;
    let at = i * PER + b;
    wanted.factors[at] = scales_up[row * BLOCKS + block];
#if zeros
    wanted.zeros[at] = element(1024u + number_in(zeros_up[zero_of(row, block) / (32u / BITS)], zero_of(row, block)));
#endif
#if minima
    wanted.minima[at] = minima_up[block * N + row];
#endif
#end
  } else {
#endif
#repeat w WORDS
    wanted.words[i * WORDS + w] = weights[(row * ROW_RUNS + start) * WORDS + w];
#end
#repeat b PER
    let block = (start * 32u + b * 16u) / BLOCK;
    let at = i * PER + b;
    wanted.factors[at] = scales[row * BLOCKS + block];
#if zeros
    wanted.zeros[at] = element(1024u + number_in(zeros[zero_of(row, block) / (32u / BITS)], zero_of(row, block)));
#endif
#if minima
    wanted.minima[at] = minima[block * N + row];
#endif
#end
#if weights_up
  }
#endif
  // Past the end of the rows weights count as 0.
#repeat b PER
  wanted.factors[i * PER + b] = select(0.0, wanted.factors[i * PER + b], there);
#if minima
  wanted.minima[i * PER + b] = select(0.0, wanted.minima[i * PER + b], there);
#endif
#end
#end
  return wanted;
}

@compute @workgroup_size(LANES * WK * WN)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) warp: u32,
) {
  let lane = thread % LANES;
  let side = warp % (WK * WN); // its number, in a form whose bounds the compiler knows
  let warp_k = side / WN;
  let warp_n = side % WN;
  let first = (group.x * WN + warp_n) * OWN;
  let top = group.y * X_ROWS;
  let at_w = side * (TILE * STRIDE);
  let at_x = WK * WN * (TILE * STRIDE) + warp_k * (X_ROWS * X_STRIDE);

  var sums = array<Result, MATRICES>();
  var wanted = request(0u, warp_k, lane, first);
  // A bound that the compiler does not know: unrolled, the kernel is so long that it waits for its own text between other kernels.
  let steps = min(STEPS, arrayLength(&x));
  for (var step = 0u; step < steps; step++) {
#repeat i X_LOADS
    let number = i * (LANES * WN) + warp_n * LANES + lane;
    let m = number / (4u * TEAM);
    let place = number % (4u * TEAM);
    let run = min((step * WK + warp_k) * TEAM + place % TEAM, RUNS - 1u);
    staged[at_x + m * X_STRIDE + place] = dealt(x[min(top + m, M - 1u) * (K / 8u) + run * 4u + place / TEAM]);
#end
#repeat half 2
#repeat i LOADS
    let at = i * PER + half * (PER - 1u);
    var block: Block;
    block.scale = wanted.factors[at];
#if zeros
    block.zero = wanted.zeros[at];
#else
    block.zero = ZERO;
#endif
#if minima
    block.least = wanted.minima[at];
#endif
    let to = at_w + (lane / TEAM + i * ROWS) * STRIDE + lane % TEAM;
#if BYTES
    staged[to] = unpacked(wanted.words[i * WORDS + half].xy, block);
    staged[to + TEAM] = unpacked(wanted.words[i * WORDS + half].zw, block);
#else
    staged[to] = unpacked(wanted.words[i][2u * half], block);
    staged[to + TEAM] = unpacked(wanted.words[i][2u * half + 1u], block);
#endif
#end
    if (half == 1u) {
      wanted = request(min(step + 1u, STEPS - 1u), warp_k, lane, first);
    }
    workgroupBarrier();
    // Two octets for each of two runs and each of their two places in this half.
#repeat part 4
#repeat cut CUTS
    let octet = part / 2u * TEAM + part % 2u * 2u + cut * (SIZE_K / 8u);
    var rights: array<Right, MM>;
#repeat j MM
    let place = at_x + j * SIZE_N * X_STRIDE + half * (2u * TEAM) + octet;
    rights[j] = subgroupMatrixLoad<Right, col_major>(&staged, place, X_STRIDE);
#end
#repeat i MN
    let left = subgroupMatrixLoad<Left, row_major>(&staged, at_w + i * SIZE_M * STRIDE + octet, STRIDE);
#repeat j MM
    sums[i * MM + j] = subgroupMatrixMultiplyAccumulate(left, rights[j], sums[i * MM + j]);
#end
#end
#end
#end
    workgroupBarrier();
#end
  }

#repeat i MN
#repeat j MM
  subgroupMatrixStore<col_major>(&staged, (side * MATRICES + i * MM + j) * AREA, sums[i * MM + j], SIZE_M / 4u);
#end
#end
  workgroupBarrier();

  for (var quad = thread; quad < WN * (OWN / 4u) * X_ROWS; quad += LANES * WK * WN) {
    let line = quad % (OWN / 4u) * 4u;
    let own = quad / (OWN / 4u) % X_ROWS;
    let team = quad / (OWN / 4u) / X_ROWS;
    let at = (team * MATRICES + line / SIZE_M * MM + own / SIZE_N) * AREA + own % SIZE_N * (SIZE_M / 4u) + line % SIZE_M / 4u;
    var products = vec4<f32>();
    var others = vec4<f32>();
#repeat p WK
    products += bitcast<vec4<f32>>(staged[at + p * WN * MATRICES * AREA]);
#if weights_up
    others += bitcast<vec4<f32>>(staged[at + (p * WN * MATRICES + MATRICES / 2u) * AREA]);
#endif
#end
    let m = top + own;
#repeat i 4
    let n = (group.x * WN + team) * OWN + line + i;
    if (m < M && n < N) {
      y[m * OF + FIRST + n] = finished(n, m * N + n, products[i], others[i]);
    }
#end
  }
}
