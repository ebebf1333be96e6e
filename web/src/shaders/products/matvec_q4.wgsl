// A row vector times a matrix in int4 or int8: y[n] = sum over k of W[n][k] * x[k], fused with the operations around
// it.
//
// W as packed_weights.wgsl has it. A row is whole blocks; what the last one has past K is not read. SIXTEENS: BLOCK is
// 16, else a multiple of 32.
// NORM: x is x / sqrt(mean(x^2) + EPSILON) * gamma. PREPARED: what comes before is more than that, all in float32:
// BEHIND: x is skip + x / sqrt(mean(x^2) + EPSILON_BEHIND) * gamma_behind before NORM; TOTAL: the first workgroup writes
// that sum. CENTERED: x less its mean before NORM, + beta behind it. WIDE: x (BEHIND: skip and total instead), gammas and
// beta are float32 although other values are float16.
// Behind the product, in this order: BIAS: + bias[n]. GATED: y[n] = silu(W[n].x) * (W_up[n].x), BIAS: of W_up too;
// TIMES: silu(W[n].x) * up[n]; ACTIVATED: silu(W[n].x). GELU: GELU in place of SiLU; POWER: max(W[n].x, 0) ^ exponent[0].
// FACTOR: * factor[0]; DIVIDED: / factor[0]; CAPPED: tanh(y / factor[0]) * factor[0]. RESIDUAL: + residual[n]. SECOND: +
// second[n]. Sums are float32; with HALF, 16 products are added as float16 before that (BYTES, SIXTEENS: 8).
//
// SPAN threads share a row; each takes every SPAN-th run of 32 elements of ROWS rows (a tile: WORKGROUP / SPAN * ROWS
// rows), so neighbours load neighbouring 16 bytes. A tile's weights are requested before x is, the next tile's before
// the present one's are used. STAGED: x is in workgroup memory, read once, in order; else in each thread's registers.
// SPLIT: sums meet in workgroup memory at last; it must be so without subgroups, and where SPAN is more than LANES.
// Dispatch: (tiles, 1, 1), or fewer: a workgroup takes every such tile if LOOP.
// Bindings, those whose condition holds: x, weights, scales, zeros, gamma, beta, gamma_behind, skip, residual, second,
// bias, exponent, factor, up, weights_up, scales_up, zeros_up, bias_up, total, y.
// Counts that follow from the others: STEPS = runs of a row for each thread, SUMS = ROWS, twice that if GATED, OWN =
// octets of x that a thread stages, MINE = OWN if STAGED, else 4 * STEPS, HALVINGS = log2 of the threads whose sums meet by shuffles.
// Limits: K a multiple of 32; SPAN a divisor of WORKGROUP, a multiple of 4 and at least
// ROWS; WORKGROUP at least 8; of GATED, TIMES and ACTIVATED one at most; PREPARED with NORM. With subgroups: SPAN a multiple of LANES or a power
// of two below, WORKGROUP a multiple of LANES, threads numbered along their subgroups.

const RUNS: u32 = K / 32u;
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
#if BEHIND
alias Entering = Octet;
#else
alias Entering = Stream;
#endif

@group(0) @binding(next) var<storage, read> x: array<Entering>;
@group(0) @binding(next) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> scales: array<element>;
#if ZEROS
@group(0) @binding(next) var<storage, read> zeros: array<u32>;
#endif
#if NORM
@group(0) @binding(next) var<storage, read> gamma: array<Stream>;
#endif
#if CENTERED
@group(0) @binding(next) var<storage, read> beta: array<Stream>;
#endif
#if BEHIND
@group(0) @binding(next) var<storage, read> gamma_behind: array<Stream>;
@group(0) @binding(next) var<storage, read> skip: array<Stream>;
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
#if TIMES
@group(0) @binding(next) var<storage, read> up: array<element>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> weights_up: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> scales_up: array<element>;
#if ZEROS
@group(0) @binding(next) var<storage, read> zeros_up: array<u32>;
#endif
#if BIAS
@group(0) @binding(next) var<storage, read> bias_up: array<element>;
#endif
#endif
#if TOTAL
@group(0) @binding(next) var<storage, read_write> total: array<Stream>;
#endif
@group(0) @binding(next) var<storage, read_write> y: array<element>;

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
#if NORM
#if SUBGROUPS
const SQUARES: u32 = WORKGROUP / LANES;
#else
const SQUARES: u32 = WORKGROUP;
#endif
var<workgroup> squares: array<f32, 2u * SQUARES>; // sums take turns
#endif
#if STAGED
// Octet j of run r is staged[j * STRIDE + r]: neighbours read neighbouring octets, and write to different banks.
const STRIDE: u32 = (STEPS * SPAN + 7u) / 8u * 8u + 2u;
var<workgroup> staged: array<Octet, 4u * STRIDE>;
#endif

#if HALF
fn halves(word: u32) -> vec2<f32> {
  return vec2<f32>(halves_of(word));
}

fn square(o: Octet) -> f32 {
  let a = vec4<f32>(halves(o.x), halves(o.y));
  let b = vec4<f32>(halves(o.z), halves(o.w));
  return dot(a, a) + dot(b, b);
}

fn scaled_pair(word: u32, factor: u32, inverse: f32) -> u32 {
  return as_word(vec2<f16>(halves(word) * halves(factor) * inverse));
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(scaled_pair(o.x, g.x, inverse), scaled_pair(o.y, g.y, inverse), //
               scaled_pair(o.z, g.z, inverse), scaled_pair(o.w, g.w, inverse));
}
#else
fn square(o: Octet) -> f32 {
  return dot(o[0], o[0]) + dot(o[1], o[1]);
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(o[0] * g[0] * inverse, o[1] * g[1] * inverse);
}
#endif

#if NORM
// The sum of a value over the workgroup; `turn` is 0 and 1 in turn.
fn workgroup_sum(thread: u32, value: f32, turn: u32) -> f32 {
  let first = turn * SQUARES;
#if SUBGROUPS
  let part = subgroupAdd(value);
  if (thread % LANES == 0u) {
    squares[first + thread / LANES] = part;
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SQUARES; i++) {
    sum += squares[first + i];
  }
#else
  squares[first + thread] = value;
  workgroupBarrier();
  if (thread < 8u) {
    for (var i = thread + 8u; i < SQUARES; i += 8u) {
      squares[first + thread] += squares[first + i];
    }
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < 8u; i++) {
    sum += squares[first + i];
  }
#endif
  return sum;
}
#endif

#if PREPARED
// The mean over x of a value that each thread has of its part.
fn mean_of(thread: u32, value: f32, turn: u32) -> f32 {
#if STAGED
  return workgroup_sum(thread, value, turn) / f32(K);
#else
#if SPLIT
  return workgroup_sum(thread, value, turn) / f32(TEAMS) / f32(K);
#else
  var sum = value;
#repeat h HALVINGS
  sum += subgroupShuffleXor(sum, WIDTH >> (h + 1u));
#end
  return sum / f32(K);
#endif
#endif
}

// Which octet of x a thread has as its i-th.
fn octet_of(thread: u32, i: u32) -> u32 {
#if STAGED
  return thread + i * WORKGROUP;
#else
  return 4u * (thread % SPAN + i / 4u * SPAN) + i % 4u;
#endif
}

fn times(a: mat2x4<f32>, b: mat2x4<f32>) -> mat2x4<f32> {
  return mat2x4<f32>(a[0] * b[0], a[1] * b[1]);
}

fn all_of(a: mat2x4<f32>) -> f32 {
  return dot(a[0] + a[1], vec4<f32>(1.0));
}

fn squares_of(a: mat2x4<f32>) -> f32 {
  return dot(a[0], a[0]) + dot(a[1], a[1]);
}

#if HALF
fn widened(o: Octet) -> mat2x4<f32> {
  return mat2x4<f32>(vec4<f32>(halves(o.x), halves(o.y)), vec4<f32>(halves(o.z), halves(o.w)));
}

fn narrowed(a: mat2x4<f32>) -> Octet {
  return Octet(as_word(vec2<f16>(a[0].xy)), as_word(vec2<f16>(a[0].zw)), //
               as_word(vec2<f16>(a[1].xy)), as_word(vec2<f16>(a[1].zw)));
}
#else
fn widened(a: Octet) -> mat2x4<f32> {
  return a;
}

fn narrowed(a: mat2x4<f32>) -> Octet {
  return a;
}
#endif

#if WIDE
fn streamed(a: Stream) -> mat2x4<f32> {
  return a;
}

fn stream_of(a: mat2x4<f32>) -> Stream {
  return a;
}
#else
fn streamed(a: Stream) -> mat2x4<f32> {
  return widened(a);
}

fn stream_of(a: mat2x4<f32>) -> Stream {
  return narrowed(a);
}
#endif

// The octets of x that a thread has, with all that comes before the product.
fn prepared(thread: u32, first: bool) -> array<Octet, MINE> {
  var lines = array<mat2x4<f32>, MINE>();
  var gains = array<Stream, MINE>();
#if CENTERED
  var shifts = array<Stream, MINE>();
#endif
#if BEHIND
  var skipped = array<Stream, MINE>();
  var gains_behind = array<Stream, MINE>();
#endif
#repeat i MINE
  let at = octet_of(thread, i);
  if (at < OCTETS) {
#if BEHIND
    lines[i] = widened(x[at]);
    skipped[i] = skip[at];
    gains_behind[i] = gamma_behind[at];
#else
    lines[i] = streamed(x[at]);
#endif
    gains[i] = gamma[at];
#if CENTERED
    shifts[i] = beta[at];
#endif
  }
#end
#if BEHIND
  var behind = 0.0;
#repeat i MINE
  behind += squares_of(lines[i]);
#end
  let inverse_behind = inverseSqrt(mean_of(thread, behind, 0u) + EPSILON_BEHIND);
#repeat i MINE
  lines[i] = streamed(skipped[i]) + times(lines[i], streamed(gains_behind[i])) * inverse_behind;
#if TOTAL
  let at = octet_of(thread, i);
  if (first && at < OCTETS) {
    total[at] = stream_of(lines[i]);
  }
#endif
#end
#endif
#if CENTERED
  var all = 0.0;
#repeat i MINE
  all += all_of(lines[i]);
#end
  let mean = mean_of(thread, all, 0u);
#repeat i MINE
  if (octet_of(thread, i) < OCTETS) {
    lines[i] -= mat2x4<f32>(vec4<f32>(mean), vec4<f32>(mean));
  }
#end
#endif
  var squared = 0.0;
#repeat i MINE
  squared += squares_of(lines[i]);
#end
  let inverse = inverseSqrt(mean_of(thread, squared, 1u) + EPSILON);
  var made = array<Octet, MINE>();
#repeat i MINE
#if CENTERED
  made[i] = narrowed(times(lines[i], streamed(gains[i])) * inverse + streamed(shifts[i]));
#else
  made[i] = narrowed(times(lines[i], streamed(gains[i])) * inverse);
#endif
#end
  return made;
}
#endif

// A thread's loads of a tile's weights: row r (the rows of weights_up follow) and step s are at r * STEPS + s.
struct Request {
  words: array<vec4<u32>, WORDS * LOADS>,
  factors: array<element, SCALES * LOADS>,
#if ZEROS
  zeros: array<u32, LOADS>, // the words that contain them
#endif
}

// The first block of a run in a row.
fn block_of(run: u32) -> u32 {
  return run * 32u / BLOCK;
}

fn request(tile: u32, team: u32, member: u32) -> Request {
  var wanted: Request;
#repeat r ROWS
#repeat s STEPS
  let row = min(tile * TILE + team * ROWS + r, N - 1u);
  let run = min(member + s * SPAN, RUNS - 1u);
  let block = block_of(run);
  let at = r * STEPS + s;
  wanted.words[WORDS * at] = weights[WORDS * (row * ROOM + run)];
  wanted.factors[SCALES * at] = scales[row * BLOCKS + block];
#if BYTES
  wanted.words[WORDS * at + 1u] = weights[WORDS * (row * ROOM + run) + 1u];
#endif
#if SIXTEENS
  wanted.factors[SCALES * at + 1u] = scales[row * BLOCKS + block + 1u];
#endif
#if ZEROS
  wanted.zeros[at] = zeros[zero_of(row, block) / (32u / BITS)];
#endif
#if GATED
  let up = (ROWS + r) * STEPS + s;
  wanted.words[WORDS * up] = weights_up[WORDS * (row * ROOM + run)];
  wanted.factors[SCALES * up] = scales_up[row * BLOCKS + block];
#if BYTES
  wanted.words[WORDS * up + 1u] = weights_up[WORDS * (row * ROOM + run) + 1u];
#endif
#if SIXTEENS
  wanted.factors[SCALES * up + 1u] = scales_up[row * BLOCKS + block + 1u];
#endif
#if ZEROS
  wanted.zeros[up] = zeros_up[zero_of(row, block) / (32u / BITS)];
#endif
#endif
#end
#end
  return wanted;
}

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
#if PREPARED
  var own = prepared(thread, group.x == 0u);
#else
  var own = array<Octet, OWN>();
#if NORM
  var gains = array<Octet, OWN>();
#endif
#repeat i OWN
  let at = thread + i * WORKGROUP;
  if ((i + 1u) * WORKGROUP <= OCTETS || at < OCTETS) {
    own[i] = x[at];
#if NORM
    gains[i] = gamma[at];
#endif
  }
#end
#if NORM
  var squared = 0.0;
#repeat i OWN
  squared += square(own[i]);
#end
  let inverse = inverseSqrt(workgroup_sum(thread, squared, 0u) / f32(K) + EPSILON);
#repeat i OWN
  own[i] = scaled(own[i], gains[i], inverse);
#end
#endif
#endif
#repeat i OWN
  let at = thread + i * WORKGROUP;
  if ((i + 1u) * WORKGROUP <= 4u * STEPS * SPAN || at < 4u * STEPS * SPAN) {
    staged[at % 4u * STRIDE + at / 4u] = paired(own[i]);
  }
#end
  workgroupBarrier();
#else
#if PREPARED
  var held = prepared(thread, group.x == 0u && team == 0u);
#else
  var held = array<Octet, 4u * STEPS>();
#if NORM
  var gains: array<Octet, 4u * STEPS>;
#endif
#repeat s STEPS
#repeat j 4
  let at = 4u * (member + s * SPAN) + j;
  if ((s + 1u) * SPAN <= RUNS || at < OCTETS) {
    held[4u * s + j] = x[at];
  }
#if NORM
  gains[4u * s + j] = gamma[min(at, OCTETS - 1u)];
#endif
#end
#end
#if NORM
  var squared = 0.0;
#repeat i STEPS
  squared += square(held[4u * i]) + square(held[4u * i + 1u]);
  squared += square(held[4u * i + 2u]) + square(held[4u * i + 3u]);
#end
#if SPLIT
  squared = workgroup_sum(thread, squared, 0u) / f32(TEAMS);
#else
#repeat h HALVINGS
  squared += subgroupShuffleXor(squared, WIDTH >> (h + 1u));
#end
#endif
  let inverse = inverseSqrt(squared / f32(K) + EPSILON);
#repeat s STEPS
#repeat j 4
  held[4u * s + j] = scaled(held[4u * s + j], gains[4u * s + j], inverse);
#end
#end
#endif
#endif
#repeat s STEPS
#repeat j 4
  held[4u * s + j] = paired(held[4u * s + j]);
#end
#end
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
#if BIAS
      before = f32(bias[n]);
#endif
#if GATED
#if BIAS
      other = f32(bias_up[n]);
#endif
#endif
#if TIMES
      other = f32(up[n]);
#endif
#if RESIDUAL
      added = f32(residual[n]);
#endif
#if SECOND
      added += f32(second[n]);
#endif
    }

    var sums = array<f32, SUMS>(); // without an initialiser SwiftShader keeps those of the last tile
#repeat s STEPS
#if STAGED
    let run = member + s * SPAN;
    let a = staged[run];
    let b = staged[STRIDE + run];
    let c = staged[2u * STRIDE + run];
    let d = staged[3u * STRIDE + run];
#else
    let a = held[4u * s];
    let b = held[4u * s + 1u];
    let c = held[4u * s + 2u];
    let d = held[4u * s + 3u];
#endif
#repeat r SUMS
    let at = r * STEPS + s;
#if ZEROS
    let row = min(tile * TILE + team * ROWS + r % ROWS, N - 1u);
    let place = zero_of(row, block_of(min(member + s * SPAN, RUNS - 1u)));
    let zero = zero_share(wanted.zeros[at], place);
#if SIXTEENS
    let zero_after = zero_share(wanted.zeros[at], place + 1u);
#else
    let zero_after = zero;
#endif
#else
    let zero = ZERO;
    let zero_after = ZERO;
#endif
#if BYTES
    let w = wanted.words[2u * at];
    let v = wanted.words[2u * at + 1u];
    let lower = octet_dot(w.xy, a, zero) + octet_dot(w.zw, b, zero);
    let upper = octet_dot(v.xy, c, zero_after) + octet_dot(v.zw, d, zero_after);
#else
    let w = wanted.words[at];
    let lower = octet_dot(w.x, a, zero) + octet_dot(w.y, b, zero);
    let upper = octet_dot(w.z, c, zero_after) + octet_dot(w.w, d, zero_after);
#endif
#if SIXTEENS
    sums[r] += total_of(lower) * f32(wanted.factors[2u * at]) + total_of(upper) * f32(wanted.factors[2u * at + 1u]);
#else
    sums[r] += total_of(lower + upper) * f32(wanted.factors[at]);
#endif
#end
#end

    var sum = 0.0;
    var sum_up = 0.0;
#if SUBGROUPS
#repeat h HALVINGS
#repeat r SUMS
    sums[r] += subgroupShuffleXor(sums[r], WIDTH >> (h + 1u));
#end
#end
#if SPLIT
    if (member % WIDTH == 0u) {
#repeat r SUMS
      parts[turn + (team * SUMS + r) * PARTS + member / WIDTH] = sums[r];
#end
    }
    workgroupBarrier();
    if (writes) {
      let at = turn + (mine / ROWS * SUMS + mine % ROWS) * PARTS;
      for (var i = 0u; i < PARTS; i++) {
        sum += parts[at + i];
        sum_up += parts[at + (SUMS - ROWS) * PARTS + i];
      }
    }
#else
#repeat r ROWS
    sum = select(sum, sums[r], member == r);
    sum_up = select(sum_up, sums[SUMS - ROWS + r], member == r);
#end
#endif
#else
#repeat r SUMS
    parts[turn + (team * SUMS + r) * PARTS + member] = sums[r];
#end
    workgroupBarrier();
    // Quarters of each sum, then the sums.
    for (var i = thread; i < 4u * TEAMS * SUMS; i += WORKGROUP) {
      let at = turn + i / 4u * PARTS + i % 4u;
      var quarter = parts[at];
      for (var p = 4u; p < PARTS; p += 4u) {
        quarter += parts[at + p];
      }
      parts[at] = quarter;
    }
    workgroupBarrier();
    if (writes) {
      let at = turn + (mine / ROWS * SUMS + mine % ROWS) * PARTS;
      let above = at + (SUMS - ROWS) * PARTS;
      sum = (parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]);
      sum_up = (parts[above] + parts[above + 1u]) + (parts[above + 2u] + parts[above + 3u]);
    }
#endif
    if (writes) {
#if GATED
      let beside = sum_up * SHARE + other;
#else
      let beside = other;
#endif
      y[n] = element(behind_product(sum * SHARE + before, beside) + added);
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
