// Ends a greedy step: takes each row's largest logit, the lowest id among equals, and advances the row.
//
// Dispatch: (1, rows). Bindings: 0 params, 1 logits, 2 scratch (block records, read), 3 state, 4 sizes, 5 ring,
// 6 input_ids, 7 mask, 8 position_ids, 9 memory. After sampler.wgsl and advance.wgsl.

@group(0) @binding(3) var<storage, read_write> state: array<u32>;
@group(0) @binding(4) var<uniform> sizes: Sizes;
@group(0) @binding(5) var<storage, read_write> ring: array<u32>;
@group(0) @binding(6) var<storage, read_write> input_ids: array<u32>;
@group(0) @binding(7) var<storage, read_write> mask: array<u32>;
@group(0) @binding(8) var<storage, read_write> position_ids: array<u32>;
@group(0) @binding(9) var<storage, read_write> memory: array<u32>;

var<workgroup> top: atomic<u32>;
var<workgroup> winner: atomic<u32>; // all bits set, minus the lowest token with the largest key

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  for (var block = thread; block < BLOCKS; block += WG) {
    atomicMax(&top, atomicLoad(&scratch[block_record(row, block)]));
  }
  workgroupBarrier();
  let largest = atomicLoad(&top);
  for (var block = thread; block < BLOCKS; block += WG) {
    let record = block_record(row, block);
    if (atomicLoad(&scratch[record]) == largest) {
      atomicMax(&winner, 0xffffffffu - atomicLoad(&scratch[record + 1u]));
    }
  }
  workgroupBarrier();
  if (thread == 0u) {
    advance(row, select(0xffffffffu - atomicLoad(&winner), NO_TOKEN, has_nothing(largest)));
  }
}
