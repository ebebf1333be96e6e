// First pass: the largest key of each block and the lowest token that has it; also empties the row's histograms.
//
// Dispatch: (BLOCKS, rows). After sampler.wgsl.

var<workgroup> keys: array<u32, 256>;
var<workgroup> tokens: array<u32, 256>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let block = group.x;
  if (block == 0u && (params.top_k | params.top_p) != 0u) {
    for (var i = thread; i < 3u * HISTOGRAM_STRIDE; i += WG) {
      atomicStore(&scratch[row_scratch(row) + HISTOGRAMS + i], 0u);
    }
  }
  let end = min(VOCAB, (block + 1u) * BLOCK);
  var best = 0u;
  var best_token = 0xffffffffu;
  for (var token = block * BLOCK + thread; token < end; token += WG) {
    let key = token_key(row, token);
    if (key > best) {
      best = key;
      best_token = token;
    }
  }
  keys[thread] = best;
  tokens[thread] = best_token;
  workgroupBarrier();
  if (thread < 16u) {
    for (var i = thread + 16u; i < WG; i += 16u) {
      if (keys[i] > best || (keys[i] == best && tokens[i] < best_token)) {
        best = keys[i];
        best_token = tokens[i];
      }
    }
    keys[thread] = best;
    tokens[thread] = best_token;
  }
  workgroupBarrier();
  if (thread == 0u) {
    for (var i = 1u; i < 16u; i++) {
      if (keys[i] > best || (keys[i] == best && tokens[i] < best_token)) {
        best = keys[i];
        best_token = tokens[i];
      }
    }
    let record = block_record(row, block);
    atomicStore(&scratch[record], best);
    atomicStore(&scratch[record + 1u], best_token);
  }
}
