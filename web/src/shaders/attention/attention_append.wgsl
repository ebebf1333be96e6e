// The keys and values of several new positions of one sequence, rotated and normalised as attention.wgsl does it, into the caches:
// before attention of all of them. The first position is state[0] - 1. Workgroups: (KV_HEADS, SEQUENCES).

#include attention_shared

// One over the root mean square of the head that begins at chunk `at`.
fn inverse_root(at: u32) -> f32 {
#if q_gamma
  var sum = 0.0;
  for (var c = 0u; c < CHUNKS; c++) {
    let part = unpacked(qkv[at + c]);
    sum += product(part, part);
  }
  return inverseSqrt(sum / f32(HEAD) + EPSILON);
#else
  return 1.0;
#endif
}

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let kv_head = workgroup.x;
  let position = state[0] - 1u + workgroup.y;
  let keys_at = workgroup.y * QKV_CHUNKS + (HEADS + kv_head) * CHUNKS;
  let values_at = keys_at + KV_HEADS * CHUNKS;
  let cache = (kv_head * CAPACITY + position) * CHUNKS;
  for (var chunk = thread; chunk < CHUNKS; chunk += 32u) {
    let turn = k_rotation(chunk, rotation(chunk, position));
    let key = combined(unpacked(qkv[keys_at + chunk]), turn[0], opposite(qkv[keys_at + partner(chunk)]), turn[1]);
    key_cache[cache + chunk] = packed(key * inverse_root(keys_at));
#if v_gamma
    let value = scaled(unpacked(qkv[values_at + chunk]), unpacked(v_gamma[chunk]));
    value_cache[cache + chunk] = packed(value * inverse_root(values_at));
#else
    value_cache[cache + chunk] = qkv[values_at + chunk];
#endif
  }
}
