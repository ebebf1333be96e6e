// Ends a greedy step: takes each row's largest logit, the lowest id among equals, and advances the row.
//
// Dispatch: (1, rows). After sampler.wgsl and advance.wgsl.

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
