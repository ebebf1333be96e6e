// Before the others, where a row's picks are followed through a grammar: which tokens it allows next, a bit each.
//
// Dispatch: (ceil(VOCAB / WG), rows). After sampler.wgsl.

var<workgroup> found: array<atomic<u32>, 8>; // WG / 32 of them are used

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let token = group.x * WG + thread;
  let made = makes_mask(row);
  if (made && token < VOCAB) {
    if (fits(row, token)) {
      atomicOr(&found[thread >> 5u], 1u << (thread & 31u));
    }
  }
  workgroupBarrier();
  let word = group.x * (WG / 32u) + thread;
  if (made && thread < WG / 32u && word < (VOCAB + 31u) / 32u) {
    memory[row_memory(row) + params.allowed_at + word] = atomicLoad(&found[thread]);
  }
}
