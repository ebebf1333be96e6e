// Attention of one new token over a key/value cache: rotary embedding, cache write and one split of the positions.
//
// As onnxruntime's GroupQueryAttention with packed qkv: q and k are normalised if NORMED (each head by its root mean
// square with EPSILON, times gamma, not rounded), then the first ROTARY elements of each head are rotated at position
// state[0] - 1 (an element with its neighbour if INTERLEAVED, else with the one ROTARY / 2 away), k (rounded to `element`) and v go into the caches there, and the softmax runs over the last WINDOW
// positions up to that one. If SOFTCAPPED, a score x becomes SOFTCAP * tanh(x / SOFTCAP). All sums are f32. state[0]
// counts the new token. If SINKS, each head's softmax has one more score, its sink, of no position.
// The positions in sight come in blocks of BLOCK; split s takes blocks s, s + splits, s + 2 * splits, ... One split alone writes y;
// several write partials, which attention_join makes y of. Workgroups beyond the last split do nothing.
// Workgroups: (splits or more, KV_HEADS * TILES); one takes TILE of the query heads of one key/value head.
//
// Bindings: 0 qkv [(HEADS + 2 * KV_HEADS) * HEAD], 1 state, 2 and 3 cos and sin [*, ROTARY / 2], 4 and 5 keys and values
// [KV_HEADS, CAPACITY, HEAD] (read, and written at the new position), 6 partials, 7 y [HEADS * HEAD]; if NORMED, 8 and 9
// the gammas of q and k [HEAD], which makes ten storage buffers; if SINKS, then the sinks [HEADS].
// Constants: HEADS, KV_HEADS, HEAD (whole chunks of 16 bytes), ROTARY (an even number of chunks), CAPACITY, WINDOW (CAPACITY if all
// positions are in sight), SCALE, WORKGROUP, BLOCK, ALONE and MAX_SPLITS (up to ALONE blocks are one split, more are one each up to MAX_SPLITS), TILE.
// SHUFFLED: a team of TEAM lanes (a power of two up to LANES, at least the chunks of a head) shares a position and takes
// BATCH positions (a power of two up to TEAM) at once; BLOCK = WORKGROUP / TEAM * BATCH, WARPS = WORKGROUP / LANES,
// HALVINGS = log2(BATCH), FOLDS = log2(TEAM / BATCH), HALF_SCORES = BATCH * TILE / 2. Else everything goes through
// workgroup memory, and BLOCK = WORKGROUP. capstan.tape.ops.attention chooses all of them.

@group(0) @binding(next) var<storage, read> qkv: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> state: array<u32>;
@group(0) @binding(next) var<storage, read> cos_cache: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> sin_cache: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read_write> key_cache: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read_write> value_cache: array<vec4<u32>>;
// First (largest score, sum of weights, 0, 0) of each head and split, then its HEAD values, not divided by the sum.
@group(0) @binding(next) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(next) var<storage, read_write> y: array<vec4<element>>;
#if NORMED
@group(0) @binding(next) var<storage, read> q_gamma: array<vec4<u32>>;
@group(0) @binding(next) var<storage, read> k_gamma: array<vec4<u32>>;
#endif
#if SINKS
@group(0) @binding(next) var<storage, read> head_sink: array<element>;
#endif

// A chunk is 16 bytes of a head, PER elements; Values are its elements in f32.
#if HALF
const PER = 8u;
alias Values = mat2x4<f32>;

fn unpacked(chunk: vec4<u32>) -> Values {
  return Values(vec4<f32>(bitcast<vec4<f16>>(chunk.xy)), vec4<f32>(bitcast<vec4<f16>>(chunk.zw)));
}

fn packed(v: Values) -> vec4<u32> {
  return vec4<u32>(bitcast<vec2<u32>>(vec4<f16>(v[0])), bitcast<vec2<u32>>(vec4<f16>(v[1])));
}

// a * b + c * d of each element.
fn combined(a: Values, b: Values, c: Values, d: Values) -> Values {
  return Values(a[0] * b[0] + c[0] * d[0], a[1] * b[1] + c[1] * d[1]);
}

fn product(a: Values, b: Values) -> f32 {
  return dot(a[0], b[0]) + dot(a[1], b[1]);
}

// a * b of each element.
fn scaled(a: Values, b: Values) -> Values {
  return Values(a[0] * b[0], a[1] * b[1]);
}

fn same(x: f32) -> Values {
  return Values(vec4<f32>(x), vec4<f32>(x));
}

#if INTERLEAVED
// Each element in its neighbour's place.
fn swapped(v: Values) -> Values {
  return Values(v[0].yxwz, v[1].yxwz);
}

// A factor for each pair of elements of a chunk, for both of them, `sign` of it for the first.
fn doubled(halves: vec2<u32>, sign: f32) -> Values {
  let v = vec4<f32>(bitcast<vec4<f16>>(halves));
  let signs = vec4<f32>(sign, 1.0, sign, 1.0);
  return Values(v.xxyy * signs, v.zzww * signs);
}
#endif
#else
const PER = 4u;
alias Values = vec4<f32>;

fn unpacked(chunk: vec4<u32>) -> Values {
  return bitcast<vec4<f32>>(chunk);
}

fn packed(v: Values) -> vec4<u32> {
  return bitcast<vec4<u32>>(v);
}

// a * b + c * d of each element.
fn combined(a: Values, b: Values, c: Values, d: Values) -> Values {
  return a * b + c * d;
}

fn product(a: Values, b: Values) -> f32 {
  return dot(a, b);
}

// a * b of each element.
fn scaled(a: Values, b: Values) -> Values {
  return a * b;
}

fn same(x: f32) -> Values {
  return Values(x);
}

#if INTERLEAVED
// Each element in its neighbour's place.
fn swapped(v: Values) -> Values {
  return v.yxwz;
}

// A factor for each pair of elements of a chunk, for both of them, `sign` of it for the first.
fn doubled(halves: vec2<u32>, sign: f32) -> Values {
  return bitcast<vec2<f32>>(halves).xxyy * vec4<f32>(sign, 1.0, sign, 1.0);
}
#endif
#endif

const CHUNKS = HEAD / PER;
const HALF_CHUNKS = ROTARY / PER / 2u; // of the rotated elements
const GROUP = HEADS / KV_HEADS;
const TILES = (GROUP + TILE - 1u) / TILE;
const QUADS = HEAD / 4u;
const VALUES = HEADS * MAX_SPLITS; // where the values of the partials begin
const LOG2_E = 1.4426950408889634;
const LEAST = -1e38; // below every score
// What a query is multiplied by, so that `capped` makes scores for exp2 of its products with the keys.
#if SOFTCAPPED
const STRENGTH = SCALE / SOFTCAP;
#else
const STRENGTH = SCALE * LOG2_E;
#endif

fn capped(x: f32) -> f32 {
#if SOFTCAPPED
  // Past 10 tanh is 1 in f32, and may be computed as one infinity over another.
  return SOFTCAP * LOG2_E * tanh(clamp(x, -10.0, 10.0));
#else
  return x;
#endif
}

// The positions before those in sight.
fn hidden(total: u32) -> u32 {
  return total - min(total, WINDOW);
}

fn count_splits(length: u32) -> u32 {
  let blocks = (length + BLOCK - 1u) / BLOCK;
  return select(min(blocks, MAX_SPLITS), 1u, blocks <= ALONE);
}

// The two rotation factors of a chunk of a head: of its elements, and of those that these are rotated with.
fn rotation(chunk: u32, position: u32) -> array<Values, 2> {
  if (chunk >= 2u * HALF_CHUNKS) {
    return array<Values, 2>(same(1.0), same(0.0));
  }
#if INTERLEAVED
  let at = position * HALF_CHUNKS + chunk / 2u;
  let upper = vec2<bool>(chunk % 2u == 1u);
  return array<Values, 2>(
    doubled(select(cos_cache[at].xy, cos_cache[at].zw, upper), 1.0),
    doubled(select(sin_cache[at].xy, sin_cache[at].zw, upper), -1.0));
#else
  let at = position * HALF_CHUNKS + chunk % HALF_CHUNKS;
  let sine = unpacked(sin_cache[at]);
  return array<Values, 2>(unpacked(cos_cache[at]), sine * select(1.0, -1.0, chunk < HALF_CHUNKS));
#endif
}

// The chunk that has the elements which those of a chunk are rotated with.
fn partner(chunk: u32) -> u32 {
#if INTERLEAVED
  return chunk;
#else
  return select(select(chunk - HALF_CHUNKS, chunk + HALF_CHUNKS, chunk < HALF_CHUNKS), chunk, chunk >= 2u * HALF_CHUNKS);
#endif
}

// What a partner's elements are, each in the place of the one that it is rotated with.
fn opposite(elements: vec4<u32>) -> Values {
#if INTERLEAVED
  return swapped(unpacked(elements));
#else
  return unpacked(elements);
#endif
}

// The rotation factors of a chunk of q or k: those of its position, times the gammas of the chunk and of its partner.
fn q_rotation(chunk: u32, turn: array<Values, 2>) -> array<Values, 2> {
#if NORMED
  return array<Values, 2>(
    scaled(turn[0], unpacked(q_gamma[chunk])), scaled(turn[1], opposite(q_gamma[partner(chunk)])));
#else
  return turn;
#endif
}

fn k_rotation(chunk: u32, turn: array<Values, 2>) -> array<Values, 2> {
#if NORMED
  return array<Values, 2>(
    scaled(turn[0], unpacked(k_gamma[chunk])), scaled(turn[1], opposite(k_gamma[partner(chunk)])));
#else
  return turn;
#endif
}

// A quad (four elements) of a head's result: into y if `sum` is all of the softmax's, else into the partials.
fn put(head: u32, split: u32, splits: u32, quad: u32, values: vec4<f32>, most: f32, weights: f32) {
  var value = values;
  var largest = most;
  var sum = weights;
#if SINKS
  if (split == 0u) {
    let sink = LOG2_E * f32(head_sink[head]);
    largest = max(most, sink);
    let shrink = exp2(most - largest);
    sum = weights * shrink + exp2(sink - largest);
    value = values * shrink;
  }
#endif
  if (splits == 1u) {
    y[head * QUADS + quad] = vec4<element>(value / sum);
    return;
  }
  let record = head * MAX_SPLITS + split;
  if (quad == 0u) {
    partials[record] = vec4<f32>(largest, sum, 0.0, 0.0);
  }
  partials[VALUES + record * QUADS + quad] = value;
}

#if SHUFFLED
const TEAMS = LANES / TEAM;
const OWNERS = TEAM / BATCH; // lanes of a team that end up with the same position

var<workgroup> warp_values: array<vec4<f32>, WARPS * TILE * QUADS>;
var<workgroup> warp_largest: array<f32, WARPS * TILE>;
var<workgroup> warp_sums: array<f32, WARPS * TILE>;

struct Request {
  keys: array<vec4<u32>, BATCH>,
  values: array<vec4<u32>, BATCH>,
}

// The chunks of a team's positions: `first` and every TEAMS-th from there. `cache` is where its kv head's chunk begins.
// Positions past `last` give any other's.
fn request(cache: u32, first: u32, last: u32) -> Request {
  var wanted: Request;
#repeat j BATCH
  wanted.keys[j] = key_cache[cache + min(first + j * TEAMS, last) * CHUNKS];
#end
#repeat j BATCH
  wanted.values[j] = value_cache[cache + min(first + j * TEAMS, last) * CHUNKS];
#end
  return wanted;
}

#if NORMED
// One over the root mean square of a head, of which each lane of a team has a chunk.
fn inverse_size(part: Values, owned: bool) -> f32 {
  var sum = select(0.0, product(part, part), owned);
  for (var mask = TEAM / 2u; mask > 0u; mask >>= 1u) {
    sum += subgroupShuffleXor(sum, mask);
  }
  return inverseSqrt(sum / f32(HEAD) + EPSILON);
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let split = workgroup.x;
  let kv_head = workgroup.y / TILES;
  let tile = workgroup.y % TILES;
  let lane = thread % LANES;
  let warp = thread / LANES;
  let member = lane % TEAM;
  let chunk = min(member, CHUNKS - 1u);
  let first = warp * TEAMS * BATCH + lane / TEAM; // the team's first position in a block

  // Positions are counted from the first one in sight on.
  let total = state[0];
  let before = hidden(total);
  let length = total - before;
  let cache = (kv_head * CAPACITY + before) * CHUNKS + chunk;
  let splits = count_splits(length);
  if (split >= splits) {
    return;
  }
  let position = length - 1u;
  var wanted = request(cache, split * BLOCK + first, position);
  let turn = rotation(chunk, total - 1u);
  let keys_at = (HEADS + kv_head) * CHUNKS;
  let values_at = keys_at + KV_HEADS * CHUNKS;
  let other = partner(chunk);
  let key_turn = k_rotation(chunk, turn);
  let key_part = unpacked(qkv[keys_at + chunk]);
  var rotated_key = combined(key_part, key_turn[0], opposite(qkv[keys_at + other]), key_turn[1]);
#if NORMED
  rotated_key = rotated_key * inverse_size(key_part, member < CHUNKS);
#endif
  let new_key = packed(rotated_key);
  let new_value = qkv[values_at + chunk];
  if (split == 0u && tile == 0u && thread < CHUNKS) {
    key_cache[cache + position * CHUNKS] = new_key;
    value_cache[cache + position * CHUNKS] = new_value;
  }
  var query = array<Values, TILE>();
  let strength = select(0.0, STRENGTH, member < CHUNKS);
  let query_turn = q_rotation(chunk, turn);
#repeat h TILE
  let at = (kv_head * GROUP + min(tile * TILE + h, GROUP - 1u)) * CHUNKS;
  let part = unpacked(qkv[at + chunk]);
  query[h] = combined(part, query_turn[0], opposite(qkv[at + other]), query_turn[1]) * strength;
#if NORMED
  query[h] = query[h] * inverse_size(part, member < CHUNKS);
#endif
#end

  var largest = array<f32, TILE>();
  var sums = array<f32, TILE>();
  var result = array<Values, TILE>();
#repeat h TILE
  largest[h] = LEAST;
#end
  var block = split;
  loop {
    let start = block * BLOCK + first;
    // Scores: each lane has its chunk's part of BATCH * TILE of them.
    var scores = array<f32, BATCH * TILE>();
#repeat j BATCH
    let key = unpacked(select(wanted.keys[j], new_key, vec4<bool>(start + j * TEAMS == position)));
#repeat h TILE
    scores[j * TILE + h] = product(key, query[h]);
#end
#end
    // Summed over the team: at each step a lane keeps half of its positions and gives the other half away, so that it
    // ends with the scores of position member / OWNERS.
#repeat step HALVINGS
    let mask = TEAM >> (step + 1u);
    let upper = (lane & mask) != 0u;
    const half = (BATCH >> (step + 1u)) * TILE;
#repeat i HALF_SCORES
    if (i < half) {
      let low = scores[i];
      let high = scores[i + half];
      scores[i] = select(low, high, upper) + subgroupShuffleXor(select(high, low, upper), mask);
    }
#end
#end
#repeat step FOLDS
#repeat h TILE
    scores[h] += subgroupShuffleXor(scores[h], OWNERS >> (step + 1u));
#end
#end
    let counted = start + (member / OWNERS) * TEAMS < length;
#repeat h TILE
    let score = select(LEAST, capped(scores[h]), counted);
    let most = max(largest[h], subgroupMax(score));
    let weight = select(0.0, exp2(score - most), counted);
    let shrink = exp2(largest[h] - most);
    largest[h] = most;
    sums[h] = sums[h] * shrink + weight;
    result[h] = result[h] * shrink;
    scores[h] = weight;
#end
#repeat j BATCH
    // What lies past the length may be anything, NaN too.
    let cached = select(vec4<u32>(), wanted.values[j], vec4<bool>(start + j * TEAMS < length));
    let value = unpacked(select(cached, new_value, vec4<bool>(start + j * TEAMS == position)));
#repeat h TILE
    result[h] = result[h] + value * subgroupShuffle(scores[h], lane / TEAM * TEAM + j * OWNERS);
#end
#end
    block += splits;
    if (block * BLOCK >= length) {
      break;
    }
    wanted = request(cache, block * BLOCK + first, position);
  }

  // The teams of a subgroup, then the subgroups.
#repeat h TILE
  let sum = subgroupAdd(select(0.0, sums[h], member % OWNERS == 0u));
  if (lane == 0u) {
    warp_largest[warp * TILE + h] = largest[h];
    warp_sums[warp * TILE + h] = sum;
  }
  let at = (warp * TILE + h) * QUADS + member * (PER / 4u);
#if HALF
  if (TEAMS == 1u) {
    if (lane < CHUNKS) {
      warp_values[at] = result[h][0];
      warp_values[at + 1u] = result[h][1];
    }
  } else {
    // Every other team goes on with one half of the chunk, and gives the other half away.
    let odd = (lane & TEAM) != 0u;
    var quad = select(result[h][0], result[h][1], odd);
    quad += subgroupShuffleXor(select(result[h][1], result[h][0], odd), TEAM);
    for (var mask = 2u * TEAM; mask < LANES; mask <<= 1u) {
      quad += subgroupShuffleXor(quad, mask);
    }
    if (lane < 2u * TEAM && member < CHUNKS) {
      warp_values[at + lane / TEAM] = quad;
    }
  }
#else
  var quad = result[h];
  for (var mask = TEAM; mask < LANES; mask <<= 1u) {
    quad += subgroupShuffleXor(quad, mask);
  }
  if (lane < CHUNKS) {
    warp_values[at] = quad;
  }
#endif
#end
  workgroupBarrier();
  for (var i = thread; i < TILE * QUADS; i += WORKGROUP) {
    let h = i / QUADS;
    var most = LEAST;
#repeat w WARPS
    most = max(most, warp_largest[w * TILE + h]);
#end
    var sum = 0.0;
    var value = vec4<f32>();
#repeat w WARPS
    let weight = exp2(warp_largest[w * TILE + h] - most);
    sum += weight * warp_sums[w * TILE + h];
    value += weight * warp_values[w * TILE * QUADS + i];
#end
    if (tile * TILE + h < GROUP) {
      put(kv_head * GROUP + tile * TILE + h, split, splits, i % QUADS, value, most, sum);
    }
  }
}
#else
const ROWS = WORKGROUP / CHUNKS; // threads that share a chunk of the values
const SHARE = WORKGROUP / TILE; // threads that share a head of the softmax

var<workgroup> query: array<Values, TILE * CHUNKS>;
var<workgroup> new_key: array<vec4<u32>, CHUNKS>;
var<workgroup> new_value: array<vec4<u32>, CHUNKS>;
var<workgroup> weights: array<f32, BLOCK * TILE>; // the scores of a block, then their weights
var<workgroup> most_of: array<f32, SHARE * TILE>;
var<workgroup> sum_of: array<f32, SHARE * TILE>;
var<workgroup> row_values: array<Values, ROWS * TILE * CHUNKS>;

#if NORMED
// One over the root mean square of the head that begins at chunk `at`.
fn inverse_size(at: u32) -> f32 {
  var sum = 0.0;
  for (var c = 0u; c < CHUNKS; c++) {
    let part = unpacked(qkv[at + c]);
    sum += product(part, part);
  }
  return inverseSqrt(sum / f32(HEAD) + EPSILON);
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let split = workgroup.x;
  // Positions are counted from the first one in sight on.
  let total = state[0];
  let before = hidden(total);
  let length = total - before;
  let splits = count_splits(length);
  if (split >= splits) {
    return;
  }
  let kv_head = workgroup.y / TILES;
  let tile = workgroup.y % TILES;
  let position = length - 1u;
  let cache = (kv_head * CAPACITY + before) * CHUNKS;
  let keys_at = (HEADS + kv_head) * CHUNKS;
  for (var i = thread; i < TILE * CHUNKS; i += WORKGROUP) {
    let chunk = i % CHUNKS;
    let turn = q_rotation(chunk, rotation(chunk, total - 1u));
    let at = (kv_head * GROUP + min(tile * TILE + i / CHUNKS, GROUP - 1u)) * CHUNKS;
    var strength = STRENGTH;
#if NORMED
    strength *= inverse_size(at);
#endif
    query[i] = combined(unpacked(qkv[at + chunk]), turn[0], opposite(qkv[at + partner(chunk)]), turn[1]) * strength;
  }
  for (var chunk = thread; chunk < CHUNKS; chunk += WORKGROUP) {
    let turn = k_rotation(chunk, rotation(chunk, total - 1u));
    var key = combined(unpacked(qkv[keys_at + chunk]), turn[0], opposite(qkv[keys_at + partner(chunk)]), turn[1]);
#if NORMED
    key = key * inverse_size(keys_at);
#endif
    new_key[chunk] = packed(key);
    new_value[chunk] = qkv[keys_at + KV_HEADS * CHUNKS + chunk];
    if (split == 0u && tile == 0u) {
      key_cache[cache + position * CHUNKS + chunk] = packed(key);
      value_cache[cache + position * CHUNKS + chunk] = new_value[chunk];
    }
  }
  workgroupBarrier();

  var largest: array<f32, TILE>; // the same in every thread
  var sum = 0.0; // of this thread's share of its head
  var result: array<Values, TILE>; // of this thread's chunk, over its rows
  for (var h = 0u; h < TILE; h++) {
    largest[h] = LEAST;
  }
  let row = thread / CHUNKS;
  let chunk = thread % CHUNKS;
  let head = thread % TILE;
  let share = thread / TILE;
  for (var block = split; block * BLOCK < length; block += splits) {
    let here = min(BLOCK, length - block * BLOCK); // positions in this block
    if (thread < here) {
      let at = block * BLOCK + thread;
      var scores: array<f32, TILE>;
      for (var h = 0u; h < TILE; h++) {
        scores[h] = 0.0; // said outright: without it SwiftShader keeps the last block's
      }
      for (var c = 0u; c < CHUNKS; c++) {
        var key = new_key[c];
        if (at < position) {
          key = key_cache[cache + at * CHUNKS + c];
        }
        let elements = unpacked(key);
        for (var h = 0u; h < TILE; h++) {
          scores[h] += product(elements, query[h * CHUNKS + c]);
        }
      }
      for (var h = 0u; h < TILE; h++) {
        weights[thread * TILE + h] = capped(scores[h]);
      }
    }
    workgroupBarrier();
    if (share < SHARE) {
      var most = LEAST;
      for (var i = share; i < here; i += SHARE) {
        most = max(most, weights[i * TILE + head]);
      }
      most_of[thread] = most;
    }
    workgroupBarrier();
    var shrink: array<f32, TILE>;
    for (var h = 0u; h < TILE; h++) {
      var most = largest[h];
      for (var i = 0u; i < min(SHARE, here); i++) {
        most = max(most, most_of[i * TILE + h]);
      }
      shrink[h] = exp2(largest[h] - most);
      largest[h] = most;
    }
    if (share < SHARE) {
      sum *= shrink[head];
      for (var i = share; i < here; i += SHARE) {
        let weight = exp2(weights[i * TILE + head] - largest[head]);
        weights[i * TILE + head] = weight;
        sum += weight;
      }
    }
    workgroupBarrier();
    for (var h = 0u; h < TILE; h++) {
      result[h] = result[h] * shrink[h];
    }
    if (row < ROWS) {
      for (var i = row; i < here; i += ROWS) {
        var value = new_value[chunk];
        if (block * BLOCK + i < position) {
          value = value_cache[cache + (block * BLOCK + i) * CHUNKS + chunk];
        }
        let elements = unpacked(value);
        for (var h = 0u; h < TILE; h++) {
          result[h] = result[h] + elements * weights[i * TILE + h];
        }
      }
    }
    workgroupBarrier();
  }

  if (share < SHARE) {
    sum_of[thread] = sum;
  }
  if (row < ROWS) {
    for (var h = 0u; h < TILE; h++) {
      row_values[(row * TILE + h) * CHUNKS + chunk] = result[h];
    }
  }
  workgroupBarrier();
  for (var i = thread; i < TILE * CHUNKS; i += WORKGROUP) {
    let h = i / CHUNKS;
    if (tile * TILE + h < GROUP) {
      var total = 0.0;
      for (var s = 0u; s < SHARE; s++) {
        total += sum_of[s * TILE + h];
      }
      var value = row_values[i];
      for (var r = 1u; r < ROWS; r++) {
        value = value + row_values[r * TILE * CHUNKS + i];
      }
      let head_index = kv_head * GROUP + tile * TILE + h;
#if HALF
      let quad = (i % CHUNKS) * 2u;
      put(head_index, split, splits, quad, value[0], largest[h], total);
      put(head_index, split, splits, quad + 1u, value[1], largest[h], total);
#else
      put(head_index, split, splits, i % CHUNKS, value, largest[h], total);
#endif
    }
  }
}
#endif
