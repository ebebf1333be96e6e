// A row vector times an int4 matrix: y[n] = sum over k of W[n][k] * x[k], with what surrounds it in a decoder fused in.
//
// W as ONNX Runtime's MatMulNBits has it: nibble i of a row, low nibbles first, is 8 + q; W = q * scale of its block.
// NORM: x is x / sqrt(mean(x^2) + EPSILON) * gamma. RESIDUAL: + residual[n]. BIAS: + bias[n].
// GATED: y[n] = silu(W[n].x) * (W_up[n].x). Sums are float32; with HALF, 16 products are added as float16 before that.
//
// SPAN threads share a row; each takes every SPAN-th run of 32 elements of ROWS rows (a tile: WORKGROUP / SPAN * ROWS
// rows), so neighbours load neighbouring 16 bytes. A tile's weights are requested before x is, the next tile's before
// the present one's are used. STAGED: x is in workgroup memory, read once, in order; else in each thread's registers.
// SPLIT: sums meet in workgroup memory at last; it must be so without subgroups, and where SPAN is more than LANES.
// Dispatch: (tiles, 1, 1), or fewer: a workgroup takes every such tile if LOOP.
// Bindings, those whose condition holds: x, weights, scales, gamma, residual, bias, weights_up, scales_up, y.
// Counts that follow from the others: STEPS = runs of a row for each thread, SUMS = ROWS, twice that if GATED, OWN =
// octets of x that a thread stages, HALVINGS = log2 of the threads whose sums meet by shuffles.
// Limits: K a multiple of 32; BLOCK too and a divisor of K; SPAN a divisor of WORKGROUP, a multiple of 4 and at least
// ROWS; WORKGROUP at least 8; GATED with neither RESIDUAL nor BIAS. With subgroups: SPAN a multiple of LANES or a power
// of two below, WORKGROUP a multiple of LANES, threads numbered along their subgroups.

const RUNS: u32 = K / 32u;
const OCTETS: u32 = K / 8u;
const TEAMS: u32 = WORKGROUP / SPAN;
const TILE: u32 = TEAMS * ROWS;
const TILES: u32 = (N + TILE - 1u) / TILE;
const LOADS: u32 = SUMS * STEPS;

// Eight elements. With HALF two of a word each, as nibbles are unpacked: (0, 4), (1, 5), (2, 6), (3, 7).
#if HALF
alias Octet = vec4<u32>;
#else
alias Octet = mat2x4<f32>;
#endif

@group(0) @binding(next) var<storage, read> x: array<Octet>;
@group(0) @binding(next) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> scales: array<element>;
#if NORM
@group(0) @binding(next) var<storage, read> gamma: array<Octet>;
#endif
#if RESIDUAL
@group(0) @binding(next) var<storage, read> residual: array<element>;
#endif
#if BIAS
@group(0) @binding(next) var<storage, read> bias: array<element>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> weights_up: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> scales_up: array<element>;
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
var<workgroup> squares: array<f32, SQUARES>;
#endif
#if STAGED
// Octet j of run r is staged[j * STRIDE + r]: neighbours read neighbouring octets, and write to different banks.
const STRIDE: u32 = (STEPS * SPAN + 7u) / 8u * 8u + 2u;
var<workgroup> staged: array<Octet, 4u * STRIDE>;
#endif

#if HALF
fn halves(word: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<vec2<f16>>(word));
}

fn paired(o: Octet) -> Octet {
  return Octet((o.x & 0xffffu) | (o.z << 16u), (o.x >> 16u) | (o.z & 0xffff0000u), //
               (o.y & 0xffffu) | (o.w << 16u), (o.y >> 16u) | (o.w & 0xffff0000u));
}

fn square(o: Octet) -> f32 {
  let a = vec4<f32>(halves(o.x), halves(o.y));
  let b = vec4<f32>(halves(o.z), halves(o.w));
  return dot(a, a) + dot(b, b);
}

fn scaled_pair(word: u32, factor: u32, inverse: f32) -> u32 {
  return bitcast<u32>(vec2<f16>(halves(word) * halves(factor) * inverse));
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(scaled_pair(o.x, g.x, inverse), scaled_pair(o.y, g.y, inverse), //
               scaled_pair(o.z, g.z, inverse), scaled_pair(o.w, g.w, inverse));
}

// 0x6400 | n is the float16 1024 + n, 0x6400 | n << 4 is 1024 + 16 n. Eighths of q, so that no product exceeds |x|.
const SHARE: f32 = 8.0;

fn eighths(word: u32) -> vec2<f16> {
  return fma(bitcast<vec2<f16>>((word & 0x000f000fu) | 0x64006400u), vec2<f16>(0.125h), vec2<f16>(-129.0h));
}

fn eighths_above(word: u32) -> vec2<f16> {
  return fma(bitcast<vec2<f16>>((word & 0x00f000f0u) | 0x64006400u), vec2<f16>(0.0078125h), vec2<f16>(-9.0h));
}

fn octet_dot(low: u32, o: Octet) -> vec2<f16> {
  let high = low >> 8u;
  let first = eighths(low) * bitcast<vec2<f16>>(o.x);
  let second = fma(eighths_above(low), bitcast<vec2<f16>>(o.y), first);
  let third = fma(eighths(high), bitcast<vec2<f16>>(o.z), second);
  return fma(eighths_above(high), bitcast<vec2<f16>>(o.w), third);
}

fn run_dot(w: vec4<u32>, a: Octet, b: Octet, c: Octet, d: Octet) -> f32 {
  let sum = (octet_dot(w.x, a) + octet_dot(w.y, b)) + (octet_dot(w.z, c) + octet_dot(w.w, d));
  return f32(sum.x) + f32(sum.y);
}
#else
fn paired(o: Octet) -> Octet {
  return o;
}

fn square(o: Octet) -> f32 {
  return dot(o[0], o[0]) + dot(o[1], o[1]);
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(o[0] * g[0] * inverse, o[1] * g[1] * inverse);
}

const SHARE: f32 = 1.0;

// 0x4b000000 | n is the float32 8388608 + n.
fn nibbles(words: vec4<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>((words & vec4<u32>(15u)) | vec4<u32>(0x4b000000u)) - 8388616.0;
}

fn octet_dot(word: u32, o: Octet) -> f32 {
  let words = vec4<u32>(word, word >> 4u, word >> 8u, word >> 12u);
  return dot(nibbles(words), o[0]) + dot(nibbles(words >> vec4<u32>(16u)), o[1]);
}

fn run_dot(w: vec4<u32>, a: Octet, b: Octet, c: Octet, d: Octet) -> f32 {
  return (octet_dot(w.x, a) + octet_dot(w.y, b)) + (octet_dot(w.z, c) + octet_dot(w.w, d));
}
#endif

#if NORM
// The sum of a value over the workgroup.
fn workgroup_sum(thread: u32, value: f32) -> f32 {
#if SUBGROUPS
  let part = subgroupAdd(value);
  if (thread % LANES == 0u) {
    squares[thread / LANES] = part;
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SQUARES; i++) {
    sum += squares[i];
  }
#else
  squares[thread] = value;
  workgroupBarrier();
  if (thread < 8u) {
    for (var i = thread + 8u; i < SQUARES; i += 8u) {
      squares[thread] += squares[i];
    }
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < 8u; i++) {
    sum += squares[i];
  }
#endif
  return sum;
}
#endif

// What a thread needs of a tile's weights: of row r (the rows of weights_up follow) and step s at r * STEPS + s.
struct Request {
  words: array<vec4<u32>, LOADS>,
  factors: array<element, LOADS>,
}

fn request(tile: u32, team: u32, member: u32) -> Request {
  var wanted: Request;
#repeat r ROWS
#repeat s STEPS
  let row = min(tile * TILE + team * ROWS + r, N - 1u);
  let run = min(member + s * SPAN, RUNS - 1u);
  let scale = row * (K / BLOCK) + run / (BLOCK / 32u);
  wanted.words[r * STEPS + s] = weights[row * RUNS + run];
  wanted.factors[r * STEPS + s] = scales[scale];
#if GATED
  wanted.words[(ROWS + r) * STEPS + s] = weights_up[row * RUNS + run];
  wanted.factors[(ROWS + r) * STEPS + s] = scales_up[scale];
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
  let inverse = inverseSqrt(workgroup_sum(thread, squared) / f32(K) + EPSILON);
#repeat i OWN
  own[i] = scaled(own[i], gains[i], inverse);
#end
#endif
#repeat i OWN
  let at = thread + i * WORKGROUP;
  if ((i + 1u) * WORKGROUP <= 4u * STEPS * SPAN || at < 4u * STEPS * SPAN) {
    staged[at % 4u * STRIDE + at / 4u] = paired(own[i]);
  }
#end
  workgroupBarrier();
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
  squared = workgroup_sum(thread, squared) / f32(TEAMS);
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
    var added = 0.0;
    if (writes) {
#if BIAS
      added += f32(bias[n]);
#endif
#if RESIDUAL
      added += f32(residual[n]);
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
    sums[r] += run_dot(wanted.words[r * STEPS + s], a, b, c, d) * f32(wanted.factors[r * STEPS + s]);
#end
#end

    var sum = 0.0;
    var up = 0.0;
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
        up += parts[at + (SUMS - ROWS) * PARTS + i];
      }
    }
#else
#repeat r ROWS
    sum = select(sum, sums[r], member == r);
    up = select(up, sums[SUMS - ROWS + r], member == r);
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
      up = (parts[above] + parts[above + 1u]) + (parts[above + 2u] + parts[above + 3u]);
    }
#endif
    if (writes) {
      let value = sum * SHARE;
#if GATED
      y[n] = element(value / (1.0 + exp(-value)) * (up * SHARE));
#else
      y[n] = element(value + added);
#endif
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
