// The second half of attention.wgsl without SHUFFLED: everything goes through workgroup memory.

#if !PREPARED
#include attention_rows
#endif

const ROWS = WORKGROUP / CHUNKS; // threads that share a chunk of the values
const SHARE = WORKGROUP / TILE; // threads that share a head of the softmax

var<workgroup> query: array<Values, TILE * CHUNKS>;
#if !WRITTEN
var<workgroup> new_key: array<vec4<u32>, CHUNKS>;
var<workgroup> new_value: array<vec4<u32>, CHUNKS>;
#endif
var<workgroup> weights: array<f32, BLOCK * TILE>; // the scores of a block, then their weights
var<workgroup> most_of: array<f32, SHARE * TILE>;
var<workgroup> sum_of: array<f32, SHARE * TILE>;
var<workgroup> row_values: array<Values, ROWS * TILE * CHUNKS>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
#if SEVERAL
  let sequence = workgroup.z;
#else
  const sequence = 0u;
#endif
  lay_out_levels(thread);
  let split = workgroup.x;
  // Position 0 is the first one in sight.
  let total = seen(sequence);
  let caches = caches_of(sequence);
  let before = hidden(total);
  let length = total - before;
  let splits = count_splits(length);
  if (split >= splits) {
    return;
  }
  let kv_head = workgroup.y / TILES;
  let tile = workgroup.y % TILES;
  let position = length - 1u;
  let rows = (caches * KV_HEADS + kv_head) * CAPACITY + before;
  let keys_at = sequence * QKV_CHUNKS + HEADS * QUERY_CHUNKS + kv_head * CHUNKS;
  for (var i = thread; i < TILE * CHUNKS; i += WORKGROUP) {
    let chunk = i % CHUNKS;
    let at = sequence * QKV_CHUNKS + (kv_head * GROUP + min(tile * TILE + i / CHUNKS, GROUP - 1u)) * QUERY_CHUNKS;
    var strength = STRENGTH;
#if PREPARED
    query[i] = unpacked(qkv[at + chunk]) * strength;
#else
#if q_gamma
    strength *= inverse_size(at);
#endif
    let turn = q_rotation(chunk, rotation(chunk, turned(caches, total - 1u)));
    query[i] = combined(unpacked(qkv[at + chunk]), turn[0], opposite(qkv[at + partner(chunk)]), turn[1]) * strength;
#endif
  }
#if !WRITTEN
  for (var chunk = thread; chunk < CHUNKS; chunk += WORKGROUP) {
    let values_at = keys_at + KV_HEADS * CHUNKS;
    let key = key_of(keys_at, chunk, turned(caches, total - 1u));
    let value = value_of(values_at, chunk);
#if QUANTIZED
    let scales = scales_of(keys_at, values_at, turned(caches, total - 1u));
    new_key[chunk] = quantized(key, scales.x);
    new_value[chunk] = quantized(value, scales.y);
#else
    new_key[chunk] = packed(key);
    new_value[chunk] = packed(value);
#endif
#if !APPENDED
    if (split == 0u && tile == 0u) {
      put_rows(rows + position, chunk, new_key[chunk], new_value[chunk]);
    }
#endif
  }
#endif
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
      let source = source_of(rows + at);
      var scores: array<f32, TILE>;
      for (var h = 0u; h < TILE; h++) {
        scores[h] = 0.0; // stated: without it SwiftShader keeps the last block's
      }
      for (var c = 0u; c < CHUNKS; c++) {
#if WRITTEN
        let key = key_chunk(source, c);
#else
        var key = new_key[c];
        if (at < position) {
          key = key_chunk(source, c);
        }
#endif
        let elements = of_cache(key);
        for (var h = 0u; h < TILE; h++) {
          scores[h] += product(elements, query[h * CHUNKS + c]) * scale_of_cache(key);
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
#if WRITTEN
        let value = value_chunk(source_of(rows + block * BLOCK + i), chunk);
#else
        var value = new_value[chunk];
        if (block * BLOCK + i < position) {
          value = value_chunk(source_of(rows + block * BLOCK + i), chunk);
        }
#endif
        let elements = of_cache(value);
        for (var h = 0u; h < TILE; h++) {
          result[h] = result[h] + elements * (weights[i * TILE + h] * scale_of_cache(value));
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
      let head_index = sequence * HEADS + kv_head * GROUP + tile * TILE + h;
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
