// Attention of the M last positions over a key/value cache by subgroup matrices, causal, with scores and sums in float32;
// without lengths, of M positions that see all M, as in encoders.
//
// With lengths each position sees those up to itself, if WINDOWED the last WINDOW of them. If SOFTCAPPED, a score x becomes
// SOFTCAP * tanh(x / SOFTCAP). With head_sink, each head's softmax has one more score, of no position.
// q and y are float16, [M, KV_HEADS * GROUP, HEAD]; keys and values [KV_HEADS, CAPACITY, HEAD], those of the M positions
// among them; lengths[0] + 1 positions are filled. Without lengths keys and values are [M, KV_HEADS, HEAD]. GROUP query heads share a key/value head, and their rows lie side by
// side: row r is head r % GROUP of position r / GROUP.
//
// QUANTIZED, FOUR_BITS: the rows of the caches are those of quantized_rows.wgsl, and come to float16 as they are staged. Queries
// are turned by the same Hadamard matrix as rows of 4 bits, and so is the result.
//
// A workgroup takes a tile of SIZE_M * MM * SUBGROUPS rows, SIZE_M * MM a subgroup, and goes over the positions they see
// in steps of BLOCK, from the step with the first that any of them sees to that with the last. Keys and values of a step are staged in workgroup memory while those of the next are loaded. Scores
// go through workgroup memory to the threads that own their rows, and come back as float16 weights 2^(score - reference);
// the results stay in matrices. The reference of a row is the largest score when it was set, and rises when a score
// exceeds it by SLACK: only then are results scaled again. Weights are at most 2^SLACK, and the largest of a row is at
// least 1.
// Dispatch: (ceil(M * GROUP / tile), KV_HEADS, 1). Sinks are [KV_HEADS * GROUP], two float16 in a word.
// Counts that follow from the others: LOADS = ceil(BLOCK * WIDTH / 8 / threads); WIDTH = HEAD, rounded up to a multiple of SIZE_N and
// SIZE_K, which staged rows are padded to by zeros; K_PARTS = WIDTH / SIZE_K; N_PARTS = WIDTH / SIZE_N; SCORES = BLOCK / SIZE_N; WEIGHTS = BLOCK / SIZE_K; QUERIES = MM * K_PARTS; RESULTS = MM * N_PARTS; SHARE =
// threads that own a row, OWN = rows that one owns (one of both is 1); SHARED = SHARE > 1; OCTETS = BLOCK / 8 / SHARE;
// QUADS = 2 * OCTETS.
// Limits: BLOCK a multiple of SIZE_N and SIZE_K, these and HEAD of 8; BLOCK of 8 * SHARE; LANES threads in every subgroup,
// numbered along it, a multiple or a divisor of SIZE_M * MM. Memory past the filled positions may contain anything.

const SLACK = 8.0;
const LOG2_E = 1.4426950408889634;
const LEAST = -1e38; // below every score; what a row sums before its first one, that multiplies by 0
// The factor of a product of a query and a key, with which `capped` makes a score for exp2.
#if SOFTCAPPED
const STRENGTH = SCALE / SOFTCAP;
#else
const STRENGTH = SCALE * LOG2_E;
#endif

const ROWS: u32 = M * GROUP;
const OWN_ROWS: u32 = SIZE_M * MM; // of a subgroup
const TILE: u32 = OWN_ROWS * SUBGROUPS;
const TILES: u32 = (ROWS + TILE - 1u) / TILE;
const WORKGROUP: u32 = LANES * SUBGROUPS;
const CHUNKS: u32 = WIDTH / 8u;
const HEAD_CHUNKS: u32 = HEAD / 8u;
const STAGED: u32 = BLOCK * CHUNKS; // octets of the keys of a step

// The stride of staged rows, in 16 bytes: each row has 16 bytes to spare, so that neighbouring rows use other banks.
const STRIDE: u32 = CHUNKS + 1u;
const SCORE_STRIDE: u32 = BLOCK / 4u + 1u;
const WEIGHT_STRIDE: u32 = BLOCK / 8u + 1u;
const VALUES_AT: u32 = BLOCK * STRIDE;
const SCORES_AT: u32 = 2u * BLOCK * STRIDE;
const WEIGHTS_AT: u32 = SCORES_AT + TILE * SCORE_STRIDE;
const SIZE: u32 = max(WEIGHTS_AT + TILE * WEIGHT_STRIDE, TILE * STRIDE);

alias Octet = vec4<u32>;
alias Left = subgroup_matrix_left<f16, SIZE_K, SIZE_M>;
alias Right = subgroup_matrix_right<f16, SIZE_N, SIZE_K>;
alias Result = subgroup_matrix_result<f32, SIZE_N, SIZE_M>;

#reads q: array<Octet>
#if QUANTIZED
#reads keys: array<u32>
#reads values: array<u32>
#include quantized_rows
#else
#reads keys: array<Octet>
#reads values: array<Octet>
#endif
#reads lengths?: array<u32>
#writes y: array<Octet>
#reads head_sink?: array<u32>

// Keys and values of a step [position][element]; scores and weights [row][position]. First the queries.
var<workgroup> staged: array<Octet, SIZE>;
var<workgroup> factors: array<f32, TILE>; // by which results of a row are multiplied
var<workgroup> risen: array<u32, SUBGROUPS>; // whether a reference of the subgroup's rows rose

struct Request {
  keys: array<Octet, LOADS>,
  values: array<Octet, LOADS>,
}

#if QUANTIZED
// Eight elements of a row of a cache: their words, and the scale.
fn key_octet(row: u32, chunk: u32) -> Octet {
#if FOUR_BITS
  return Octet(keys[row * ROW + 1u + chunk], 0u, keys[row * ROW], 0u);
#else
  let first = row * ROW + 1u + 2u * chunk;
  return Octet(keys[first], keys[first + 1u], keys[row * ROW], 0u);
#endif
}

fn value_octet(row: u32, chunk: u32) -> Octet {
#if FOUR_BITS
  return Octet(values[row * ROW + 1u + chunk], 0u, values[row * ROW], 0u);
#else
  let first = row * ROW + 1u + 2u * chunk;
  return Octet(values[first], values[first + 1u], values[row * ROW], 0u);
#endif
}

// The same as float16.
fn half_octet(octet: Octet) -> Octet {
  let scale = bitcast<f32>(octet.z);
  let low = quad_of_row(octet.x) * scale;
#if FOUR_BITS
  let high = quad_of_row(octet.x >> 16u) * scale;
#else
  let high = quad_of_row(octet.y) * scale;
#endif
  return Octet(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
#else
fn lay_out_levels(thread: u32) {}

fn key_octet(row: u32, chunk: u32) -> Octet {
  return keys[row * HEAD_CHUNKS + chunk];
}

fn value_octet(row: u32, chunk: u32) -> Octet {
  return values[row * HEAD_CHUNKS + chunk];
}

fn half_octet(octet: Octet) -> Octet {
  return octet;
}
#endif

// The offset of a row in q and y.
fn row_at(row: u32, kv_head: u32) -> u32 {
  return (row / GROUP * (KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP) * HEAD_CHUNKS;
}

fn capped(x: vec4<f32>) -> vec4<f32> {
#if SOFTCAPPED
  // Past 10 tanh is 1 in f32, and may be computed as one infinity over another.
  return (SOFTCAP * LOG2_E) * tanh(clamp(x, vec4<f32>(-10.0), vec4<f32>(10.0)));
#else
  return x;
#endif
}

// How many of the first `count` positions the last of them does not see.
fn hidden(count: u32) -> u32 {
#if WINDOWED
  return count - min(count, WINDOW);
#else
  return 0u;
#endif
}

// Zeros past the head.
fn padded(octet: Octet, chunk: u32) -> Octet {
  return select(octet, Octet(), vec4<bool>(WIDTH != HEAD && chunk >= HEAD_CHUNKS));
}

fn request(block: u32, thread: u32, kv_head: u32, total: u32) -> Request {
  var wanted: Request;
#repeat i LOADS
  let at = min(thread + i * WORKGROUP, STAGED - 1u);
  let position = block * BLOCK + at / CHUNKS;
#if lengths
  let row = kv_head * CAPACITY + min(position, CAPACITY - 1u);
#else
  let row = min(position, M - 1u) * KV_HEADS + kv_head;
#endif
  let chunk = at % CHUNKS;
  wanted.keys[i] = padded(key_octet(row, min(chunk, HEAD_CHUNKS - 1u)), chunk);
  wanted.values[i] = select(Octet(), padded(value_octet(row, min(chunk, HEAD_CHUNKS - 1u)), chunk), vec4<bool>(position < total));
#end
  return wanted;
}

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) warp: u32,
) {
  let first = (TILES - 1u - group.x) * TILE; // the tiles that see most come first
  let kv_head = group.y;
  let lane = thread % LANES;
  let part = thread % SHARE;
  let own_row = warp * OWN_ROWS;
#if lengths
  let total = lengths[0] + 1u;
  let past = total - min(total, M);
#else
  let total = M;
  let past = M;
#endif
  let seen = min(past + min(first + TILE - 1u, ROWS - 1u) / GROUP + 1u, total);
  let blocks = (seen + BLOCK - 1u) / BLOCK;
  let first_block = hidden(min(past + first / GROUP + 1u, total)) / BLOCK;

  lay_out_levels(thread);
  var wanted = request(first_block, thread, kv_head, total);
  for (var at = thread; at < TILE * CHUNKS; at += WORKGROUP) {
    let chunk = min(at % CHUNKS, HEAD_CHUNKS - 1u);
    staged[at / CHUNKS * STRIDE + at % CHUNKS] =
      padded(q[row_at(min(first + at / CHUNKS, ROWS - 1u), kv_head) + chunk], at % CHUNKS);
  }
  workgroupBarrier();
  var queries: array<Left, QUERIES>;
#repeat i MM
#repeat k K_PARTS
  let place = (own_row + i * SIZE_M) * STRIDE + k * (SIZE_K / 8u);
  queries[i * K_PARTS + k] = subgroupMatrixLoad<Left, row_major>(&staged, place, STRIDE);
#end
#end

  var references: array<f32, OWN>;
  var sums: array<f32, OWN>;
  var visible: array<u32, OWN>; // positions
#repeat o OWN
  references[o] = LEAST;
  sums[o] = 0.0;
  visible[o] = min(past + min(first + thread / SHARE + o * WORKGROUP, ROWS - 1u) / GROUP + 1u, total);
#end
  var results = array<Result, RESULTS>();
  for (var block = first_block; block < blocks; block++) {
    workgroupBarrier();
#repeat i LOADS
    let at = thread + i * WORKGROUP;
    if ((i + 1u) * WORKGROUP <= STAGED || at < STAGED) {
      staged[at / CHUNKS * STRIDE + at % CHUNKS] = half_octet(wanted.keys[i]);
      staged[VALUES_AT + at / CHUNKS * STRIDE + at % CHUNKS] = half_octet(wanted.values[i]);
    }
#end
    workgroupBarrier();
    wanted = request(min(block + 1u, blocks - 1u), thread, kv_head, total);

#repeat j SCORES
    var scores = array<Result, MM>();
#repeat k K_PARTS
    let right = subgroupMatrixLoad<Right, col_major>(&staged, j * SIZE_N * STRIDE + k * (SIZE_K / 8u), STRIDE);
#repeat i MM
    scores[i] = subgroupMatrixMultiplyAccumulate(queries[i * K_PARTS + k], right, scores[i]);
#end
#end
#repeat i MM
    let place = SCORES_AT + (own_row + i * SIZE_M) * SCORE_STRIDE + j * (SIZE_N / 4u);
    subgroupMatrixStore<row_major>(&staged, place, scores[i], SCORE_STRIDE);
#end
#end
    workgroupBarrier();

    var rise = 0.0;
#repeat o OWN
    let row = thread / SHARE + o * WORKGROUP;
    var own: array<vec4<f32>, QUADS>;
    var most = LEAST;
#repeat c QUADS
    let score = capped(bitcast<vec4<f32>>(staged[SCORES_AT + row * SCORE_STRIDE + part * QUADS + c]) * STRENGTH);
    let position = vec4<u32>(block * BLOCK + (part * QUADS + c) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    let in_sight = (position < vec4<u32>(visible[o])) & (position >= vec4<u32>(hidden(visible[o])));
    own[c] = select(vec4<f32>(LEAST), score, in_sight);
    most = max(most, max(max(own[c].x, own[c].y), max(own[c].z, own[c].w)));
#end
#if SHARED
    for (var mask = 1u; mask < SHARE; mask <<= 1u) {
      most = max(most, subgroupShuffleXor(most, mask));
    }
#endif
    var factor = 1.0;
    if (most > references[o] + SLACK) {
      factor = exp2(references[o] - most);
      references[o] = most;
      rise = 1.0;
    }
    var sum = vec4<f32>();
#repeat c OCTETS
    let low = exp2(own[2u * c] - references[o]);
    let high = exp2(own[2u * c + 1u] - references[o]);
    sum += low + high;
    staged[WEIGHTS_AT + row * WEIGHT_STRIDE + part * OCTETS + c] = Octet(
      pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
#end
    sums[o] = sums[o] * factor + (sum.x + sum.y) + (sum.z + sum.w);
    if (part == 0u) {
      factors[row] = factor;
    }
#end
    let rises = subgroupMax(rise);
    if (lane == 0u) {
      risen[warp] = u32(rises);
    }
    let rose = workgroupUniformLoad(&risen);
    var any = 0u;
#repeat w SUBGROUPS
    any |= rose[w];
#end
    if (block > first_block && any != 0u) {
#repeat j N_PARTS
      workgroupBarrier();
#repeat i MM
      let place = SCORES_AT + (own_row + i * SIZE_M) * SCORE_STRIDE;
      subgroupMatrixStore<row_major>(&staged, place, results[i * N_PARTS + j], SCORE_STRIDE);
#end
      workgroupBarrier();
      for (var quad = lane; quad < OWN_ROWS * SIZE_N / 4u; quad += LANES) {
        let row = own_row + quad / (SIZE_N / 4u);
        let at = SCORES_AT + row * SCORE_STRIDE + quad % (SIZE_N / 4u);
        staged[at] = bitcast<Octet>(bitcast<vec4<f32>>(staged[at]) * factors[row]);
      }
      workgroupBarrier();
#repeat i MM
      let place = SCORES_AT + (own_row + i * SIZE_M) * SCORE_STRIDE;
      results[i * N_PARTS + j] = subgroupMatrixLoad<Result, row_major>(&staged, place, SCORE_STRIDE);
#end
#end
    }

#repeat k WEIGHTS
    var lefts: array<Left, MM>;
#repeat i MM
    let place = WEIGHTS_AT + (own_row + i * SIZE_M) * WEIGHT_STRIDE + k * (SIZE_K / 8u);
    lefts[i] = subgroupMatrixLoad<Left, row_major>(&staged, place, WEIGHT_STRIDE);
#end
#repeat j N_PARTS
    let place = VALUES_AT + k * SIZE_K * STRIDE + j * (SIZE_N / 8u);
    let right = subgroupMatrixLoad<Right, row_major>(&staged, place, STRIDE);
#repeat i MM
    results[i * N_PARTS + j] = subgroupMatrixMultiplyAccumulate(lefts[i], right, results[i * N_PARTS + j]);
#end
#end
#end
  }

#repeat o OWN
  var sum = sums[o];
#if SHARED
  for (var mask = 1u; mask < SHARE; mask <<= 1u) {
    sum += subgroupShuffleXor(sum, mask);
  }
#endif
  if (part == 0u) {
#if head_sink
    let head = kv_head * GROUP + min(first + thread / SHARE + o * WORKGROUP, ROWS - 1u) % GROUP;
    let sink = LOG2_E * unpack2x16float(head_sink[head / 2u])[head % 2u];
    sum += exp2(min(sink - references[o], 126.0)); // more would be infinite
#endif
    factors[thread / SHARE + o * WORKGROUP] = 1.0 / sum;
  }
#end
#repeat j N_PARTS
  workgroupBarrier();
#repeat i MM
  let place = SCORES_AT + (own_row + i * SIZE_M) * SCORE_STRIDE;
  subgroupMatrixStore<row_major>(&staged, place, results[i * N_PARTS + j], SCORE_STRIDE);
#end
  workgroupBarrier();
  for (var octet = lane; octet < OWN_ROWS * SIZE_N / 8u; octet += LANES) {
    let row = own_row + octet / (SIZE_N / 8u);
    let at = SCORES_AT + row * SCORE_STRIDE + octet % (SIZE_N / 8u) * 2u;
    let low = bitcast<vec4<f32>>(staged[at]) * factors[row];
    let high = bitcast<vec4<f32>>(staged[at + 1u]) * factors[row];
    let chunk = j * (SIZE_N / 8u) + octet % (SIZE_N / 8u);
    if (first + row < ROWS && chunk < HEAD_CHUNKS) {
      y[row_at(first + row, kv_head) + chunk] = Octet(
        pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
    }
  }
#end
}
