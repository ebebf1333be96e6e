// A matrix times an int4 or int8 matrix: y[m][n] = sum over k of W[n][k] * x[m][k], fused with the operations after
// it.
//
// x as shaders/quantize_rows.wgsl makes it: int8, in runs of 32 elements with one scale each; products and sums of a
// run are exact integers, those of runs are added as float32. W as packing.wgsl has it, int8 if BYTES. If SHIFTED, with
// zeros or minima, a run's sum W x is scale * sum (q - 8) x + shift * sum x, where the shift is (8 - zero) * scale +
// minimum (int8: 128 for 8). With weights_up, y[m][n] = silu(W[n].x[m]) * (W_up[n].x[m]); + bias[n]; + residual[m][n].
//
// A workgroup makes TM * WM rows and TN * WN columns (half of them of W, half of W_up, if there is one), a thread TM by TN of them.
// It goes over k in steps of RUNS runs, those of the next step being loaded while the present ones are multiplied.
// SLICES sets of WM * WN threads each take a part of a step's runs of the whole tile; their sums meet at last,
// MEETING of TM rows at a time.
// Dispatch: (ceil(N / columns), ceil(M / rows), 1).
// Counts that follow from the others: A_LOADS, B_LOADS, S_LOADS = what a thread loads of x, weights and x_scales a
// step; FOURS = TN / 4, OUT_FOURS = half of it with weights_up.
// Limits: K a multiple of 32 * RUNS; BLOCK a multiple of 32; N and TN multiples of 4, TN of 8 with
// weights_up; RUNS a multiple of SLICES; WM a multiple of 4 and WN of 8; weights_up with neither residual nor bias.

alias Word = vec4<u32>;

#include packing

const TILE_M: u32 = TM * WM;
const TILE_N: u32 = TN * WN;
const THREADS: u32 = WM * WN;
const WORKGROUP: u32 = THREADS * SLICES;
const ALL_RUNS: u32 = K / 32u;
const STEPS: u32 = ALL_RUNS / RUNS;
#if weights_up
const COLUMNS: u32 = TN / 2u;
#else
const COLUMNS: u32 = TN;
#endif
const STRIDE_N: u32 = TILE_N + 2u; // so that the halves of a run are stored to different banks
const A_SIZE: u32 = 2u * RUNS * TILE_M;
const B_SIZE: u32 = 2u * RUNS * STRIDE_N;
const SIZE: u32 = A_SIZE + B_SIZE;

const ROOM: u32 = BLOCKS * (BLOCK / 32u); // runs that fit into a row's blocks
#if BYTES
const WORDS: u32 = 2u; // of 16 bytes in a run
const UNIT: f32 = 16.0; // scales of x are a sixteenth
#else
const WORDS: u32 = 1u;
const UNIT: f32 = 1.0;
#endif
#if SHIFTED
const SCALES: u32 = RUNS * (TILE_M + 2u * TILE_N);
#else
const SCALES: u32 = RUNS * (TILE_M + TILE_N);
#endif

alias Four = vec4<element>;

#reads x: array<vec4<u32>>
#reads x_scales: array<f32>
#reads bias?: array<Four>
#reads residual?: array<Four>
#writes y: array<Four>

// Two steps, each x as [half of a run][row], then weights as [half of a run][slot].
var<workgroup> tiles: array<vec4<u32>, 2u * SIZE>;
// Two steps, each the scales of x as [run][row], then those of weights as [run][slot], then likewise their shifts.
var<workgroup> factors: array<f32, 2u * SCALES>;

#if BYTES
// q of eight bytes 128 + q: of the even elements, then of the odd ones.
fn eight(first: u32, second: u32) -> vec2<u32> {
  let even = (first & 0xffu) | ((first >> 8u) & 0xff00u) | ((second & 0xffu) << 16u) | ((second << 8u) & 0xff000000u);
  let odd = ((first >> 8u) & 0xffu) | ((first >> 16u) & 0xff00u) | ((second << 8u) & 0xff0000u) | (second & 0xff000000u);
  return vec2<u32>(even, odd) ^ vec2<u32>(0x80808080u);
}

fn unpacked(words: vec4<u32>) -> vec4<u32> {
  return vec4<u32>(eight(words.x, words.y), eight(words.z, words.w));
}
#else
// 16 q of eight nibbles 8 + q as int8: of the even elements, then of the odd ones.
fn evens(words: vec2<u32>) -> vec2<u32> {
  return ((words << vec2<u32>(4u)) & vec2<u32>(0xf0f0f0f0u)) ^ vec2<u32>(0x80808080u);
}

fn odds(words: vec2<u32>) -> vec2<u32> {
  return (words & vec2<u32>(0xf0f0f0f0u)) ^ vec2<u32>(0x80808080u);
}

fn unpacked(words: vec2<u32>) -> vec4<u32> {
  let even = evens(words);
  let odd = odds(words);
  return vec4<u32>(even.x, odd.x, even.y, odd.y);
}
#endif

// A sum of 32 products, at most 32 * 127 * 128: as the low bits of the float32 3 * 2^22.
fn run_dot(a: vec4<u32>, b: vec4<u32>, v: vec4<u32>, w: vec4<u32>) -> f32 {
  var sum = 0x4b400000i;
  sum += dot4I8Packed(a.x, v.x);
  sum += dot4I8Packed(a.y, v.y);
  sum += dot4I8Packed(a.z, v.z);
  sum += dot4I8Packed(a.w, v.w);
  sum += dot4I8Packed(b.x, w.x);
  sum += dot4I8Packed(b.y, w.y);
  sum += dot4I8Packed(b.z, w.z);
  sum += dot4I8Packed(b.w, w.w);
  return bitcast<f32>(sum) - 12582912.0;
}

#if SHIFTED
// The sum of a run of x.
fn run_sum(a: vec4<u32>, b: vec4<u32>) -> f32 {
  const ONES = 0x01010101u;
  var sum = dot4I8Packed(a.x, ONES) + dot4I8Packed(a.y, ONES) + dot4I8Packed(a.z, ONES) + dot4I8Packed(a.w, ONES);
  sum += dot4I8Packed(b.x, ONES) + dot4I8Packed(b.y, ONES) + dot4I8Packed(b.z, ONES) + dot4I8Packed(b.w, ONES);
  return f32(sum);
}
#endif

// A thread's loads of one step.
struct Request {
  a: array<vec4<u32>, A_LOADS>,
  b: array<vec4<u32>, WORDS * B_LOADS>,
#if zeros
  b_zeros: array<u32, B_LOADS>, // the words that contain them
#endif
#if minima
  b_minima: array<element, B_LOADS>,
#endif
  a_scales: array<f32, S_LOADS>,
  b_scales: array<element, B_LOADS>,
}

fn column_of(first: u32, slot: u32) -> u32 {
  return min(first + slot % WN * COLUMNS + slot / WN % COLUMNS, N - 1u);
}

fn request(step: u32, thread: u32, row: u32, column: u32) -> Request {
  var wanted: Request;
#repeat i A_LOADS
  let at = thread + i * WORKGROUP;
  wanted.a[i] = x[(step * 2u * RUNS + at / TILE_M) * M + min(row + at % TILE_M, M - 1u)];
#end
#repeat i S_LOADS
  let at = min(thread + i * WORKGROUP, RUNS * TILE_M - 1u);
  wanted.a_scales[i] = x_scales[(step * RUNS + at / TILE_M) * M + min(row + at % TILE_M, M - 1u)];
#end
#repeat i B_LOADS
  let at = thread + i * WORKGROUP;
  // Slot j * WN + c holds column c * COLUMNS + j: neighbours in a tile read neighbouring slots, and write neighbours.
  let slot = at / RUNS;
  let run = step * RUNS + at % RUNS;
  let n = column_of(column, slot);
  let place = WORDS * (n * ROOM + run);
  let block = run / (BLOCK / 32u);
  let scale = n * BLOCKS + block;
#if zeros
  let zero = zero_of(n, block) / (32u / BITS);
#endif
#if minima
  let least = block * N + n;
#endif
#if weights_up
  if (slot >= TILE_N / 2u) {
    wanted.b[WORDS * i] = weights_up[place];
#if BYTES
    wanted.b[WORDS * i + 1u] = weights_up[place + 1u];
#endif
    wanted.b_scales[i] = scales_up[scale];
#if zeros
    wanted.b_zeros[i] = zeros_up[zero];
#endif
#if minima
    wanted.b_minima[i] = minima_up[least];
#endif
  } else {
#endif
    wanted.b[WORDS * i] = weights[place];
#if BYTES
    wanted.b[WORDS * i + 1u] = weights[place + 1u];
#endif
    wanted.b_scales[i] = scales[scale];
#if zeros
    wanted.b_zeros[i] = zeros[zero];
#endif
#if minima
    wanted.b_minima[i] = minima[least];
#endif
#if weights_up
  }
#endif
#end
  return wanted;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y * TILE_M;
  let column = group.x * (COLUMNS * WN);
  let slice = thread / THREADS;
  let member = thread % THREADS;
  // 32 threads are 4 rows by 8 columns, numbered so that neighbours share what they read.
  let warp = member / 32u;
  let tx = warp % (WN / 8u) * 8u + ((member & 1u) | ((member >> 1u) & 6u));
  let ty = warp / (WN / 8u) * 4u + (((member >> 1u) & 1u) | ((member >> 3u) & 2u));

  var sums = array<f32, SUMS>();
  var wanted = request(0u, thread, row, column);
  for (var step = 0u; step < STEPS; step++) {
    let base = (step & 1u) * SIZE;
    let scale_base = (step & 1u) * SCALES;
#repeat i A_LOADS
    tiles[base + thread + i * WORKGROUP] = wanted.a[i];
#end
#repeat i S_LOADS
    if ((i + 1u) * WORKGROUP <= RUNS * TILE_M || thread + i * WORKGROUP < RUNS * TILE_M) {
      factors[scale_base + thread + i * WORKGROUP] = wanted.a_scales[i];
    }
#end
#repeat i B_LOADS
    let at = thread + i * WORKGROUP;
    let slot = at / RUNS;
    let run = at % RUNS;
#if BYTES
    tiles[base + A_SIZE + 2u * run * STRIDE_N + slot] = unpacked(wanted.b[2u * i]);
    tiles[base + A_SIZE + (2u * run + 1u) * STRIDE_N + slot] = unpacked(wanted.b[2u * i + 1u]);
#else
    tiles[base + A_SIZE + 2u * run * STRIDE_N + slot] = unpacked(wanted.b[i].xy);
    tiles[base + A_SIZE + (2u * run + 1u) * STRIDE_N + slot] = unpacked(wanted.b[i].zw);
#endif
    let scale = f32(wanted.b_scales[i]);
    factors[scale_base + RUNS * TILE_M + run * TILE_N + slot] = scale * UNIT;
#if SHIFTED
    var shift = 0.0;
#if zeros
    let zero_at = zero_of(column_of(column, slot), (step * RUNS + run) / (BLOCK / 32u));
    shift = (f32(1u << (BITS - 1u)) - f32(number_in(wanted.b_zeros[i], zero_at))) * scale;
#endif
#if minima
    shift += f32(wanted.b_minima[i]);
#endif
    factors[scale_base + RUNS * (TILE_M + TILE_N) + run * TILE_N + slot] = 16.0 * shift;
#endif
#end
    workgroupBarrier();
    wanted = request(min(step + 1u, STEPS - 1u), thread, row, column);

    for (var r = 0u; r < RUNS / SLICES; r++) {
      let run = slice * (RUNS / SLICES) + r;
      let at_a = base + 2u * run * TILE_M + ty;
      let at_b = base + A_SIZE + 2u * run * STRIDE_N + tx;
      let scale_a = scale_base + run * TILE_M + ty;
      let scale_b = scale_base + RUNS * TILE_M + run * TILE_N + tx;
      var first = array<vec4<u32>, TM>();
      var second = array<vec4<u32>, TM>();
      var shares = array<f32, TM>();
#if SHIFTED
      var totals = array<f32, TM>();
      let shift_b = scale_b + RUNS * TILE_N;
#endif
#repeat i TM
      first[i] = tiles[at_a + i * WM];
      second[i] = tiles[at_a + TILE_M + i * WM];
      shares[i] = factors[scale_a + i * WM];
#if SHIFTED
      totals[i] = run_sum(first[i], second[i]);
#endif
#end
#repeat j TN
      let v = tiles[at_b + j * WN];
      let w = tiles[at_b + STRIDE_N + j * WN];
      let share = factors[scale_b + j * WN];
#if SHIFTED
      let shift = factors[shift_b + j * WN];
#repeat i TM
      sums[i * TN + j] += (run_dot(first[i], second[i], v, w) * share + totals[i] * shift) * shares[i];
#end
#else
#repeat i TM
      sums[i * TN + j] += run_dot(first[i], second[i], v, w) * (shares[i] * share);
#end
#endif
#end
    }
  }

#if SLICED
  for (var s = 1u; s < SLICES; s++) {
#repeat p PARTS
    workgroupBarrier();
    if (slice == s) {
#repeat i MEETING
#repeat f FOURS
      let four = (p * MEETING + i) * TN + 4u * f;
      tiles[(i * FOURS + f) * THREADS + member] =
        bitcast<vec4<u32>>(vec4<f32>(sums[four], sums[four + 1u], sums[four + 2u], sums[four + 3u]));
#end
#end
    }
    workgroupBarrier();
    if (slice == 0u) {
#repeat i MEETING
#repeat f FOURS
      let four = (p * MEETING + i) * TN + 4u * f;
      let other = bitcast<vec4<f32>>(tiles[(i * FOURS + f) * THREADS + member]);
      sums[four] += other.x;
      sums[four + 1u] += other.y;
      sums[four + 2u] += other.z;
      sums[four + 3u] += other.w;
#end
#end
    }
#end
  }
  if (slice != 0u) {
    return;
  }
#endif
#repeat i TM
  let m = row + ty + i * WM;
  if (m < M) {
#repeat f OUT_FOURS
    let n = column + tx * COLUMNS + 4u * f;
    if (n < N) {
      let at = i * TN + 4u * f;
      var value = vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
#if weights_up
      let above = at + COLUMNS;
      let up = vec4<f32>(sums[above], sums[above + 1u], sums[above + 2u], sums[above + 3u]);
      value = value / (1.0 + exp(-value)) * up;
#endif
#if bias
      value += vec4<f32>(bias[n / 4u]);
#endif
#if residual
      value += vec4<f32>(residual[(m * N + n) / 4u]);
#endif
      y[(m * N + n) / 4u] = Four(value);
    }
#end
  }
#end
}
