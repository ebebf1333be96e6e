// The keys and values of several new positions of one sequence, or of several (PACKED), rotated and normalised as attention.wgsl does
// it, into the caches: before attention of all of them. The first position is held(0) - 1. Workgroups: (KV_HEADS, SEQUENCES).

#include attention_shared
#include attention_rows

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let kv_head = workgroup.x;
#if ALONG
  let position = held(0u) - 1u + workgroup.y;
#else
  let position = held(workgroup.y) - 1u;
#endif
  let caches = caches_of(workgroup.y);
  let row = (caches * KV_HEADS + kv_head) * CAPACITY + position;
  let turn = turned(caches, position);
  let keys_at = workgroup.y * QKV_CHUNKS + HEADS * QUERY_CHUNKS + kv_head * CHUNKS;
  let values_at = keys_at + KV_HEADS * CHUNKS;
#if QUANTIZED
  let scales = scales_of(keys_at, values_at, turn);
#endif
  for (var chunk = thread; chunk < CHUNKS; chunk += 32u) {
    let key = key_of(keys_at, chunk, turn);
    let value = value_of(values_at, chunk);
#if QUANTIZED
    put_rows(row, chunk, quantized(key, scales.x), quantized(value, scales.y));
#else
    put_rows(row, chunk, packed(key), packed(value));
#endif
  }
}
