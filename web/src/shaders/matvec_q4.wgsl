// A row vector times an int4 matrix: y[n] = sum over k of W[n][k] * x[k], with what surrounds it in a decoder fused in.
//
// W as ONNX Runtime's MatMulNBits has it: nibble i of a row, low nibbles first, is 8 + q; W = q * scale of its block.
// NORM: x is x / sqrt(mean(x^2) + EPSILON) * gamma. RESIDUAL: + residual[n]. BIAS: + bias[n].
// GATED: y[n] = silu(W[n].x) * (W_up[n].x). Sums are float32; with HALF, 16 products are added as float16 before that.
//
// SPAN threads share a row; each takes every SPAN-th run of 32 elements of ROWS rows (a tile: WORKGROUP / SPAN * ROWS
// rows), so neighbours load neighbouring 16 bytes. A tile's weights are requested before x is, the next tile's before
// the present one's are used. STAGED: x is in workgroup memory, read once, in order; else in each thread's registers.
// Dispatch: (tiles, 1, 1), or fewer: a workgroup takes every such tile if LOOP.
// Bindings, those whose condition holds: x, weights, scales, gamma, residual, bias, weights_up, scales_up, y.
// Limits: K a multiple of 32; BLOCK too and a divisor of K; SPAN a divisor of WORKGROUP, a multiple of 4 and at least
// ROWS; WORKGROUP at least 8; GATED with neither RESIDUAL nor BIAS. With subgroups: SPAN a multiple of LANES or a power
// of two below, WORKGROUP a multiple of LANES, threads numbered along their subgroups.

const RUNS: u32 = K / 32u;
const STEPS: u32 = (RUNS + SPAN - 1u) / SPAN;
const TEAMS: u32 = WORKGROUP / SPAN;
const TILE: u32 = TEAMS * ROWS;
const TILES: u32 = (N + TILE - 1u) / TILE;
#if GATED
const SUMS: u32 = 2u * ROWS;
#else
const SUMS: u32 = ROWS;
#endif
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
var<workgroup> parts: array<f32, WORKGROUP / SPAN * PARTS * SUMS>;
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
// 1 / sqrt(mean(x^2) + EPSILON), by the whole workgroup.
fn inverse_norm(thread: u32) -> f32 {
  var sum = 0.0;
  for (var i = thread; i < K / 8u; i += WORKGROUP) {
    sum += square(x[i]);
  }
#if SUBGROUPS
  sum = subgroupAdd(sum);
  if (thread % LANES == 0u) {
    squares[thread / LANES] = sum;
  }
  workgroupBarrier();
#else
  squares[thread] = sum;
  workgroupBarrier();
  if (thread < 8u) {
    for (var i = thread + 8u; i < SQUARES; i += 8u) {
      sum += squares[i];
    }
    squares[thread] = sum;
  }
  workgroupBarrier();
#endif
  var total = 0.0;
#if SUBGROUPS
  for (var i = 0u; i < SQUARES; i++) {
#else
  for (var i = 0u; i < 8u; i++) {
#endif
    total += squares[i];
  }
  return inverseSqrt(total / f32(K) + EPSILON);
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let member = thread % SPAN;
  let team = thread / SPAN;
  // Which row of a tile the thread writes, if it is one.
#if SUBGROUPS
  let mine = select(thread, select(TILE, team * ROWS + member, member < ROWS), PARTS == 1u);
#else
  let mine = thread;
#endif
  var tile = group.x;
  if (tile >= TILES) {
    return;
  }

  var words: array<vec4<u32>, LOADS>;
  var factors: array<element, LOADS>;
  for (var r = 0u; r < ROWS; r++) {
    for (var s = 0u; s < STEPS; s++) {
      let row = min(tile * TILE + team * ROWS + r, N - 1u);
      let run = min(member + s * SPAN, RUNS - 1u);
      words[r * STEPS + s] = weights[row * RUNS + run];
      factors[r * STEPS + s] = scales[row * (K / BLOCK) + run / (BLOCK / 32u)];
#if GATED
      words[(ROWS + r) * STEPS + s] = weights_up[row * RUNS + run];
      factors[(ROWS + r) * STEPS + s] = scales_up[row * (K / BLOCK) + run / (BLOCK / 32u)];
#endif
    }
  }

#if NORM
  let inverse = inverse_norm(thread);
#endif
#if STAGED
  for (var i = thread; i < 4u * STEPS * SPAN; i += WORKGROUP) {
    var octet = Octet();
    if (i < K / 8u) {
#if NORM
      octet = scaled(x[i], gamma[i], inverse);
#else
      octet = x[i];
#endif
    }
    staged[i % 4u * STRIDE + i / 4u] = paired(octet);
  }
  workgroupBarrier();
#else
  var held: array<Octet, 4u * STEPS>;
  for (var s = 0u; s < STEPS; s++) {
    for (var j = 0u; j < 4u; j++) {
      let i = 4u * (member + s * SPAN) + j;
      if (i < K / 8u) {
#if NORM
        held[4u * s + j] = paired(scaled(x[i], gamma[i], inverse));
#else
        held[4u * s + j] = paired(x[i]);
#endif
      }
    }
  }
#endif

#if LOOP
  loop {
    let next = tile + groups.x;
    var next_words: array<vec4<u32>, LOADS>;
    var next_factors: array<element, LOADS>;
    if (next < TILES) {
      for (var r = 0u; r < ROWS; r++) {
        for (var s = 0u; s < STEPS; s++) {
          let row = min(next * TILE + team * ROWS + r, N - 1u);
          let run = min(member + s * SPAN, RUNS - 1u);
          next_words[r * STEPS + s] = weights[row * RUNS + run];
          next_factors[r * STEPS + s] = scales[row * (K / BLOCK) + run / (BLOCK / 32u)];
#if GATED
          next_words[(ROWS + r) * STEPS + s] = weights_up[row * RUNS + run];
          next_factors[(ROWS + r) * STEPS + s] = scales_up[row * (K / BLOCK) + run / (BLOCK / 32u)];
#endif
        }
      }
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

    var sums = array<f32, SUMS>(); // without an initialiser SwiftShader keeps the last round's
    for (var s = 0u; s < STEPS; s++) {
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
      for (var r = 0u; r < SUMS; r++) {
        sums[r] += run_dot(words[r * STEPS + s], a, b, c, d) * f32(factors[r * STEPS + s]);
      }
    }

    var sum = 0.0;
    var up = 0.0;
#if SUBGROUPS
    for (var r = 0u; r < SUMS; r++) {
      for (var step = WIDTH / 2u; step > 0u; step /= 2u) {
        sums[r] += subgroupShuffleXor(sums[r], step);
      }
    }
    if (PARTS == 1u) {
      for (var r = 0u; r < ROWS; r++) {
        sum = select(sum, sums[r], member == r);
        up = select(up, sums[SUMS - ROWS + r], member == r);
      }
    } else {
      if (member % WIDTH == 0u) {
        for (var r = 0u; r < SUMS; r++) {
          parts[(team * SUMS + r) * PARTS + member / WIDTH] = sums[r];
        }
      }
      workgroupBarrier();
      if (writes) {
        let at = (mine / ROWS * SUMS + mine % ROWS) * PARTS;
        for (var i = 0u; i < PARTS; i++) {
          sum += parts[at + i];
          up += parts[at + (SUMS - ROWS) * PARTS + i];
        }
      }
    }
#else
    for (var r = 0u; r < SUMS; r++) {
      parts[(team * SUMS + r) * PARTS + member] = sums[r];
    }
    workgroupBarrier();
    // Quarters of each sum, then the sums.
    for (var i = thread; i < 4u * TEAMS * SUMS; i += WORKGROUP) {
      let at = i / 4u * PARTS + i % 4u;
      var quarter = parts[at];
      for (var p = 4u; p < PARTS; p += 4u) {
        quarter += parts[at + p];
      }
      parts[at] = quarter;
    }
    workgroupBarrier();
    if (writes) {
      let at = (mine / ROWS * SUMS + mine % ROWS) * PARTS;
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
    if (PARTS > 1u) {
      workgroupBarrier();
    }
    tile = next;
    words = next_words;
    factors = next_factors;
  }
#endif
}
