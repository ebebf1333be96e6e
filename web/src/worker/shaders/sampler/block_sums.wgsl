// Last pass over the logits: each block's weight above the cut and its number of tokens at the cut. First resolves the
// last round of the cut, if there is one; without top_k and top_p everything is above the cut.
//
// Dispatch: (BLOCKS, rows). After sampler.wgsl, prefix.wgsl and cut.wgsl.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let block = group.x;
  gather_top(row, thread);
  workgroupBarrier();
  if (params.top_p != 0u) {
    resolve(row, thread, 7u, block == 0u);
  } else if (params.top_k != 0u) {
    resolve(row, thread, 3u, block == 0u);
  }
  let top = atomicLoad(&row_top);
  let cut_key = cut.key;
  let end = min(VOCAB, (block + 1u) * BLOCK);
  var weight = vec2<u32>(0u, 0u);
  var equals = 0u;
  for (var token = block * BLOCK + thread; token < end; token += WG) {
    let key = token_key(row, token);
    if (key > cut_key) {
      weight = add64(weight, vec2<u32>(kept(token_weight(key, top)), 0u));
    } else if (key == cut_key) {
      equals += 1u;
    }
  }
  workgroupBarrier();
  for (var i = thread; i < 256u; i += WG) {
    set_entry(i, vec2<u32>(0u, 0u), 0u);
  }
  set_entry(thread, weight, equals);
  workgroupBarrier();
  fold_entries(thread);
  workgroupBarrier();
  if (thread == 0u) {
    let total = entries_total();
    let record = block_record(row, block);
    atomicStore(&scratch[record + 2u], total.weight.x);
    atomicStore(&scratch[record + 3u], total.weight.y);
    atomicStore(&scratch[record + 4u], total.equals);
  }
}
