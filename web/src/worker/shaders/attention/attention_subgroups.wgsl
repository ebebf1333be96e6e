// The second half of attention.wgsl with SHUFFLED: a team of lanes shares a position, and passes sums and weights by shuffles.

const TEAMS = LANES / TEAM;
const OWNERS = TEAM / BATCH; // lanes of a team that end up with the same position

var<workgroup> warp_values: array<vec4<f32>, WARPS * TILE * QUADS>;
var<workgroup> warp_largest: array<f32, WARPS * TILE>;
var<workgroup> warp_sums: array<f32, WARPS * TILE>;

struct Request {
  keys: array<vec4<u32>, BATCH>,
  values: array<vec4<u32>, BATCH>,
}

// A chunk of a team's positions: `first` and every TEAMS-th from there. `rows` is where the rows of its kv head begin.
// Positions past `last` give any other's.
fn request(rows: u32, chunk: u32, first: u32, last: u32) -> Request {
  var wanted: Request;
#repeat j BATCH
  wanted.keys[j] = key_chunk(source_of(rows + min(first + j * TEAMS, last)), chunk);
#end
#repeat j BATCH
  wanted.values[j] = value_chunk(source_of(rows + min(first + j * TEAMS, last)), chunk);
#end
  return wanted;
}

#if QUANTIZED
// The scale of a head, of which each lane of a team has a chunk.
fn scale_of(part: Values) -> f32 {
  var most = largest_of(part);
  for (var mask = TEAM / 2u; mask > 0u; mask >>= 1u) {
    most = max(most, subgroupShuffleXor(most, mask));
  }
  return most / 127.0;
}
#endif

#if q_gamma
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
#if SEVERAL
  let sequence = workgroup.z;
#else
  const sequence = 0u;
#endif
  lay_out_levels(thread);
  let split = workgroup.x;
  let kv_head = workgroup.y / TILES;
  let tile = workgroup.y % TILES;
  let lane = thread % LANES;
  let warp = thread / LANES;
  let member = lane % TEAM;
  let chunk = min(member, CHUNKS - 1u);
  let first = warp * TEAMS * BATCH + lane / TEAM; // the team's first position in a block

  // Position 0 is the first one in sight.
  let total = seen(sequence);
  let caches = caches_of(sequence);
  let before = hidden(total);
  let length = total - before;
  let rows = (caches * KV_HEADS + kv_head) * CAPACITY + before;
  let splits = count_splits(length);
  if (split >= splits) {
    return;
  }
  let position = length - 1u;
  var wanted = request(rows, chunk, split * BLOCK + first, position);
#if !PREPARED
  let turn = rotation(chunk, turned(caches, total - 1u));
  let other = partner(chunk);
#endif
#if !WRITTEN
  let keys_at = sequence * QKV_CHUNKS + HEADS * QUERY_CHUNKS + kv_head * CHUNKS;
  let values_at = keys_at + KV_HEADS * CHUNKS;
  let key_turn = k_rotation(chunk, turn);
  let plain_key = unpacked(qkv[keys_at + chunk]);
  var rotated_key = combined(plain_key, key_turn[0], opposite(qkv[keys_at + other]), key_turn[1]);
#if q_gamma
  rotated_key = rotated_key * inverse_size(plain_key, member < CHUNKS);
#endif
  let plain_value = unpacked(qkv[values_at + chunk]);
#if v_gamma
  let normed_value = scaled(plain_value, unpacked(v_gamma[chunk])) * inverse_size(plain_value, member < CHUNKS);
#else
  let normed_value = plain_value;
#endif
#if QUANTIZED
  let new_key = quantized(rotated_key, scale_of(rotated_key));
  let new_value = quantized(normed_value, scale_of(normed_value));
#else
  let new_key = packed(rotated_key);
  let new_value = packed(normed_value);
#endif
#if !APPENDED
  if (split == 0u && tile == 0u && thread < CHUNKS) {
    put_rows(rows + position, chunk, new_key, new_value);
  }
#endif
#endif
  var query = array<Values, TILE>();
  let strength = select(0.0, STRENGTH, member < CHUNKS);
#if !PREPARED
  let query_turn = q_rotation(chunk, turn);
#endif
#repeat h TILE
  let at = sequence * QKV_CHUNKS + (kv_head * GROUP + min(tile * TILE + h, GROUP - 1u)) * QUERY_CHUNKS;
  let part = unpacked(qkv[at + chunk]);
#if PREPARED
  query[h] = part * strength;
#else
  query[h] = combined(part, query_turn[0], opposite(qkv[at + other]), query_turn[1]) * strength;
#endif
#if q_gamma
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
#if WRITTEN
    let key_part = wanted.keys[j];
#else
    let key_part = select(wanted.keys[j], new_key, vec4<bool>(start + j * TEAMS == position));
#endif
    let key = of_cache(key_part);
    let key_scale = scale_of_cache(key_part);
#repeat h TILE
    scores[j * TILE + h] = product(key, query[h]) * key_scale;
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
    // Memory past the length may contain anything, NaN too.
    let read = select(vec4<u32>(), wanted.values[j], vec4<bool>(start + j * TEAMS < length));
#if WRITTEN
    let value_part = read;
#else
    let value_part = select(read, new_value, vec4<bool>(start + j * TEAMS == position));
#endif
    let value = of_cache(value_part);
    let value_scale = scale_of_cache(value_part);
#repeat h TILE
    result[h] = result[h] + value * (subgroupShuffle(scores[h], lane / TEAM * TEAM + j * OWNERS) * value_scale);
#end
#end
    block += splits;
    if (block * BLOCK >= length) {
      break;
    }
    wanted = request(rows, chunk, block * BLOCK + first, position);
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
      put(sequence * HEADS + kv_head * GROUP + tile * TILE + h, split, splits, i % QUADS, value, most, sum);
    }
  }
}
