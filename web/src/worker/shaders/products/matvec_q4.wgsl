// A row vector times a matrix in int4 or int8: y[FIRST + n] = sum over k of W[n][k] * x[k], fused with the operations around
// it, as its bindings and flags show.
//
// W as packing.wgsl has it; SIXTEENS: BLOCK is 16, else a multiple of 32. With gamma, x is x / sqrt(mean(x^2) + EPSILON) *
// gamma (matvec_norm.wgsl). PREPARED: what comes before is more than that (matvec_prepared.wgsl). With partials, x is
// joined of splits of attention (matvec_attended.wgsl), without a norm. After the product, in
// this order: + bias[n], of W_up + bias_up[n]; what product_epilogue.wgsl computes; + residual[n]; + second[n]. Sums are
// float32; with HALF, 16 products are added as float16 before that (BYTES, SIXTEENS: 8).
//
// SPAN threads share a row; each takes every SPAN-th run of 32 elements of ROWS rows (a tile: WORKGROUP / SPAN * ROWS
// rows), so neighbours load neighbouring 16 bytes. A tile's weights are requested before x is (matvec_request.wgsl), the
// next tile's before the present one's are used. STAGED: x is in workgroup memory (matvec_staged.wgsl), else in each
// thread's registers (matvec_held.wgsl). The sums of threads meet at last (matvec_meet.wgsl, matvec_meet_shuffled.wgsl),
// if SPLIT in workgroup memory; it must be so without subgroups, and where SPAN is more than LANES.
// Dispatch: (tiles, 1, 1), or fewer: a workgroup takes every such tile if LOOP.
// Counts that follow from the others: STEPS = runs of a row for each thread, SUMS = ROWS, twice that with weights_up,
// OWN = octets of x that a thread stages, MINE = OWN if STAGED, else 4 * STEPS, HALVINGS = log2 of the threads whose
// sums meet by shuffles.
// Limits: K a multiple of 32; SPAN a divisor of WORKGROUP, a multiple of 4 and at least ROWS; WORKGROUP at least 8; of
// weights_up, up and ACTIVATED one at most; PREPARED with gamma. With subgroups: SPAN a multiple of LANES or a power of
// two below, WORKGROUP a multiple of LANES, threads numbered along their subgroups.

alias Word = vec4<u32>;

#include packed_weights
#include product_epilogue

#if RAGGED
// K is a multiple of 8 alone: the last run ends in the padding of the row's last block, where x is taken for 0.
const RUNS: u32 = K / 32u + 1u;
#else
const RUNS: u32 = K / 32u;
#endif
const OCTETS: u32 = K / 8u;
const TEAMS: u32 = WORKGROUP / SPAN;
const TILE: u32 = TEAMS * ROWS;
const TILES: u32 = (N + TILE - 1u) / TILE;
const LOADS: u32 = SUMS * STEPS;

// The number of runs that fit into a row's blocks.
const ROOM: u32 = BLOCKS * BLOCK / 32u;
// Words of 16 bytes of a run.
#if BYTES
const WORDS: u32 = 2u;
#else
const WORDS: u32 = 1u;
#endif
#if SIXTEENS
const SCALES: u32 = 2u;
#else
const SCALES: u32 = 1u;
#endif

#if WIDE
alias Stream = mat2x4<f32>;
#else
alias Stream = Octet;
#endif
#if gamma_inner
alias Entering = Octet;
#else
alias Entering = Stream;
#endif

#if partials
#include matvec_attended
#else
#reads x: array<Entering>
#endif
#reads gamma?: array<Stream>
#reads beta?: array<Stream>
#reads gamma_inner?: array<Stream>
#reads skip?: array<Stream>
#writes total?: array<Stream>

#if SUBGROUPS
const WIDTH: u32 = min(SPAN, LANES); // threads whose sums meet by shuffles
const PARTS: u32 = SPAN / WIDTH; // what is left of a sum for workgroup memory
#else
const PARTS: u32 = SPAN;
#endif
#if SPLIT
#if LOOP
var<workgroup> parts: array<f32, 2u * TEAMS * SUMS * PARTS>; // tiles take turns
#else
var<workgroup> parts: array<f32, TEAMS * SUMS * PARTS>;
#endif
#endif
#if STAGED
// Octet j of run r is staged[j * STRIDE + r]: neighbours read neighbouring octets, and write to different banks.
const STRIDE: u32 = (STEPS * SPAN + 7u) / 8u * 8u + 2u;
var<workgroup> staged: array<Octet, 4u * STRIDE>;
#endif

#if gamma
#include matvec_norm
#endif
#if PREPARED
#include matvec_prepared
#endif
#include matvec_request

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let member = thread % SPAN;
  let team = thread / SPAN;
  // Which row of a tile the thread writes, if it is one.
#if SPLIT
  let mine = thread;
#else
  let mine = select(TILE, team * ROWS + member, member < ROWS);
#endif
  var tile = group.x;
  if (tile >= TILES) {
    return;
  }

  var turn = 0u;
  var wanted = request(tile, team, member);

#if STAGED
#include matvec_staged
#else
#include matvec_held
#endif

#if LOOP
  loop {
    let next = tile + groups.x;
    var later: Request;
    if (next < TILES) {
      later = request(next, team, member);
    }
#endif
    let n = tile * TILE + mine;
    let writes = mine < TILE && n < N;
    var before = 0.0;
    var other = 0.0;
    var added = 0.0;
    if (writes) {
#if bias
      before = f32(bias[n]);
#endif
#if weights_up
#if bias
      other = f32(bias_up[n]);
#endif
#endif
#if up
      other = f32(up[n]);
#endif
#if residual
      added = f32(residual[n]);
#endif
#if second
      added += f32(second[n]);
#endif
    }

#include matvec_products

    var sum = 0.0;
    var sum_up = 0.0;
#if SUBGROUPS
#include matvec_meet_shuffled
#else
#include matvec_meet
#endif
    if (writes) {
#if weights_up
      let beside = sum_up * SHARE + other;
#else
      let beside = other;
#endif
      y[FIRST + n] = element(product_epilogue(sum * SHARE + before, beside) + added);
    }
#if LOOP
    if (next >= TILES) {
      break;
    }
#if SPLIT
    turn = TEAMS * SUMS * PARTS - turn;
#endif
    tile = next;
    wanted = later;
  }
#endif
}
