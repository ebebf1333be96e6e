// A few rows times a matrix in int4 or int8: y[m][FIRST + n] = sum over k of W[n][k] * x[m][k], fused with the operations
// after it.
//
// W as packing.wgsl has it; SIXTEENS: BLOCK is 16, else a multiple of 32. A weight is loaded and unpacked once for TALL rows of
// x. x is [M, K], y [M, OF]. After the product: + bias[n], of W_up + bias_up[n]; what product_epilogue.wgsl computes, with up by
// up[m][n]; + residual[m][n]; + second[m][n]. Sums are float32; with HALF, 32 products are added as float16 before that (SIXTEENS
// 16, BYTES 8).
//
// SPAN threads share ROWS rows of W (a tile: WORKGROUP / SPAN * ROWS rows). They take SPAN runs of 32 elements at a time, a run
// each, so that neighbours load neighbouring 16 bytes, and request the next ones before they use the present ones
// (matvec_request.wgsl). The same runs of x go through workgroup memory, for all rows of the tile. With subgroups each shuffle
// halves the sums that a thread holds; what is left of them meets in workgroup memory, where each thread finishes some results.
// Dispatch: (tiles, ceil(M / TALL), 1).
// Counts that follow from the others: STEPS = 1, LINES = ROWS, twice that with weights_up, HIGH = the power of two from TALL on,
// SUMS = LINES * HIGH, HALF_SUMS = SUMS / 2, OWN = octets of x that a thread stages at a time, PER = scales of a run, 2 with
// SIXTEENS, EACH = 4 / PER, HALVINGS = log2 of the threads whose sums meet by shuffles, LEFT = max(1, SUMS >> HALVINGS).
// Limits: K a multiple of 32; ROWS, SPAN, WORKGROUP powers of two, TALL 2 at least. With subgroups: WORKGROUP a multiple of
// LANES, threads numbered along their subgroups.

alias Word = vec4<u32>;

#include packed_weights
#include product_epilogue

const OCTETS: u32 = K / 8u;
const RUNS: u32 = K / 32u;
const ROOM: u32 = BLOCKS * BLOCK / 32u; // runs that fit into a row's blocks
const TEAMS: u32 = WORKGROUP / SPAN;
const TILE: u32 = TEAMS * ROWS;
const STAGED: u32 = TALL * 4u * SPAN; // octets
const LOADS: u32 = LINES;
#if BYTES
const WORDS: u32 = 2u;
#else
const WORDS: u32 = 1u;
#endif
const SCALES: u32 = PER;
#if SUBGROUPS
const WIDTH: u32 = min(SPAN, LANES); // threads whose sums meet by shuffles
#else
const WIDTH: u32 = 1u;
#endif
const PARTS: u32 = SPAN / WIDTH;

#reads x: array<Octet>

var<workgroup> parts: array<f32, TEAMS * SUMS * PARTS>;
// Octet j of run r of row m is staged[(m * 4 + j) * STRIDE + r]: neighbours read neighbouring octets, and write to different banks.
const STRIDE: u32 = SPAN + 2u;
var<workgroup> staged: array<Octet, TALL * 4u * STRIDE>;

#include matvec_request

// Eight weights of a run.
fn eight_of(wanted: ptr<function, Request>, line: u32, octet: u32) -> Eight {
#if BYTES
  let words = (*wanted).words[2u * line + octet / 2u];
  return select(words.xy, words.zw, octet % 2u == 1u);
#else
  return (*wanted).words[line][octet];
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let member = thread % SPAN;
  let team = thread / SPAN;
  let top = group.y * TALL;

  var sums = array<f32, SUMS>();
  var wanted = request(group.x, team, member);
  // A bound that the compiler does not know: unrolled, the kernel is so long that it waits for its own text between other kernels.
  let runs = min(RUNS, arrayLength(&x));
  for (var start = 0u; start < runs; start += SPAN) {
    var later: Request;
    if (start + SPAN < RUNS) {
      later = request(group.x, team, start + SPAN + member);
    }
    workgroupBarrier();
#repeat i OWN
    let number = thread + i * WORKGROUP;
    if ((i + 1u) * WORKGROUP <= STAGED || number < STAGED) {
      let m = number / (4u * SPAN);
      let place = number % (4u * SPAN);
      let at = start * 4u + place;
      var octet = Octet(); // past the end of the rows x counts as 0
      if (at < OCTETS) {
        octet = x[min(top + m, M - 1u) * OCTETS + at];
      }
      staged[(m * 4u + place % 4u) * STRIDE + place / 4u] = dealt(octet);
    }
#end
    workgroupBarrier();
#if zeros
    let block = block_of(min(start + member, RUNS - 1u));
#endif
#repeat part PER
    var products = array<Part, SUMS>();
#if minima
    var x_sums = array<f32, TALL>();
#endif
#repeat o EACH
    let eight = part * EACH + o;
    var spreads = array<Spread, LINES>();
#repeat r LINES
#if zeros
    let row = min(group.x * TILE + team * ROWS + r % ROWS, N - 1u);
    spreads[r] = spread(eight_of(&wanted, r, eight), zero_share(wanted.zeros[r], zero_of(row, block) + part));
#else
    spreads[r] = spread(eight_of(&wanted, r, eight), ZERO);
#endif
#end
#repeat m TALL
    let octet = staged[(m * 4u + eight) * STRIDE + member];
#if minima
    x_sums[m] += octet_sum(octet);
#endif
#repeat r LINES
    products[r * HIGH + m] = spread_added(spreads[r], octet, products[r * HIGH + m]);
#end
#end
#end
#repeat r LINES
#repeat m TALL
    sums[r * HIGH + m] += total_of(products[r * HIGH + m]) * f32(wanted.factors[PER * r + part]);
#if minima
    sums[r * HIGH + m] += x_sums[m] * f32(wanted.minima[PER * r + part]);
#endif
#end
#end
#end
    wanted = later;
  }

#if SUBGROUPS
  // A thread whose bit of the mask is set keeps the upper half of its sums, its neighbour the lower half.
  var base = 0u;
#repeat h HALVINGS
  const MASK = WIDTH >> (h + 1u);
  const KEPT = SUMS >> (h + 1u);
  let upper = (thread & MASK) != 0u;
  base += select(0u, KEPT, upper);
#repeat i HALF_SUMS
  if (i < KEPT) {
    let given = select(sums[i + KEPT], sums[i], upper);
    let own = select(sums[i], sums[i + KEPT], upper);
    sums[i] = own + subgroupShuffleXor(given, MASK);
  }
#end
  if (KEPT == 0u) {
    sums[0] += subgroupShuffleXor(sums[0], MASK);
  }
#end
  if (thread % max(1u, WIDTH / SUMS) == 0u) {
#repeat i LEFT
    parts[(team * SUMS + base + i) * PARTS + member / WIDTH] = sums[i];
#end
  }
#else
#repeat i SUMS
  parts[(team * SUMS + i) * PARTS + member] = sums[i];
#end
#endif
  workgroupBarrier();

  for (var j = thread; j < TILE * TALL; j += WORKGROUP) {
    let line = j % TILE;
    let n = group.x * TILE + line;
    let m = top + j / TILE;
    if (n < N && m < M) {
      let at = (line / ROWS * SUMS + line % ROWS * HIGH + j / TILE) * PARTS;
      var product = 0.0;
      var other = 0.0;
      for (var p = 0u; p < PARTS; p++) {
        product += parts[at + p];
#if weights_up
        other += parts[at + ROWS * HIGH * PARTS + p];
#endif
      }
      y[m * OF + FIRST + n] = finished(n, m * N + n, product * SHARE, other * SHARE);
    }
  }
}
