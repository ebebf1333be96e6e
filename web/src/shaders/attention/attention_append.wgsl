// The keys and values of several new positions of one sequence, rotated and normalised as attention.wgsl does it, into the caches:
// before attention of all of them. The first position is held(0) - 1. Workgroups: (KV_HEADS, SEQUENCES).

#include attention_shared
#include attention_rows

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let kv_head = workgroup.x;
  let position = held(0u) - 1u + workgroup.y;
  let keys_at = workgroup.y * QKV_CHUNKS + (HEADS + kv_head) * CHUNKS;
  let values_at = keys_at + KV_HEADS * CHUNKS;
#if QUANTIZED
  let scales = scales_of(keys_at, values_at, position);
#endif
  for (var chunk = thread; chunk < CHUNKS; chunk += 32u) {
    let key = key_of(keys_at, chunk, position);
    let value = value_of(values_at, chunk);
#if QUANTIZED
    put_rows(kv_head * CAPACITY + position, chunk, quantized(key, scales.x), quantized(value, scales.y));
#else
    put_rows(kv_head * CAPACITY + position, chunk, packed(key), packed(value));
#endif
  }
}
