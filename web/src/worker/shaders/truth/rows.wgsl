// Prepares a KV cache for the check of a step at position held(0) - 1: rows from that position on are filled with WORD;
// REPEAT: those before it repeat the first FILLED ones.
// Bindings: 0 cache [*, CAPACITY, WORDS], 1 state. Dispatch: (CAPACITY * WORDS / 64 or fewer, heads).

#writes cache: array<u32>
#reads state: array<u32>

#include held

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let head = id.y * CAPACITY * WORDS;
  let position = held(0u) - 1u;
  for (var i = id.x; i < CAPACITY * WORDS; i += groups.x * 64u) {
    let row = i / WORDS;
    if (row >= position) {
      cache[head + i] = WORD;
    }
#if REPEAT
    if (row < position && row >= FILLED) {
      cache[head + i] = cache[head + row % FILLED * WORDS + i % WORDS];
    }
#endif
  }
}
