// One round of a cut (see cut.wgsl): how many tokens (rounds 0 to 3) or how much weight (4 to 7) has each value of the
// round's 8 bits of the key, among the tokens whose higher bits are the digits found so far. First resolves the round
// before it, and empties the histogram of the round after it.
//
// Dispatch: (BLOCKS, rows). After sampler.wgsl, prefix.wgsl and cut.wgsl.

var<workgroup> bins_low: array<atomic<u32>, 256>;
var<workgroup> bins_high: array<atomic<u32>, 256>;

fn add_to_bin(bin: u32, amount: u32) {
  let before = atomicAdd(&bins_low[bin], amount);
  if (before + amount < before) {
    atomicAdd(&bins_high[bin], 1u);
  }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let block = group.x;
  let now = which.x;
  let digit = now & 3u;
  let by_weight = now >= 4u;
  if (by_weight) {
    gather_top(row, thread);
    workgroupBarrier();
  }
  if (digit != 0u || (by_weight && params.top_k != 0u)) {
    resolve(row, thread, now - 1u, block == 0u);
  }
  if (block == 0u) {
    for (var i = thread; i < HISTOGRAM_STRIDE; i += WG) {
      atomicStore(&scratch[histogram_at(row, now + 1u) + i], 0u);
    }
  }
  // top_p weighs what lies above the cut of top_k; what is at that cut is accounted for in first_weight_cut.
  var floor_key = 0u;
  if (by_weight && params.top_k != 0u) {
    if (digit == 0u) {
      floor_key = cut.key;
    } else {
      floor_key = load_cut(row, 3u).key;
    }
  }
  let top = atomicLoad(&row_top);
  let shift = 24u - 8u * digit;
  var end = min(VOCAB, (block + 1u) * BLOCK);
  if (by_weight && digit != 0u && cut.settled != 0u) {
    end = 0u; // nothing left to find
  }
  for (var token = block * BLOCK + thread; token < end; token += WG) {
    let key = token_key(row, token);
    if (digit != 0u && ((key ^ cut.prefix) >> shift) > 255u) {
      continue;
    }
    let bin = (key >> shift) & 255u;
    if (!by_weight) {
      atomicAdd(&bins_low[bin], 1u);
    } else if (key > floor_key) {
      let weight = token_weight(key, top);
      if (weight != 0u) {
        add_to_bin(bin, weight);
      }
    }
  }
  workgroupBarrier();
  for (var bin = thread; bin < 256u; bin += WG) {
    let low = atomicLoad(&bins_low[bin]);
    var high = atomicLoad(&bins_high[bin]);
    if ((low | high) != 0u) {
      let at = histogram_at(row, now) + 2u * bin;
      let before = atomicAdd(&scratch[at], low);
      if (before + low < before) {
        high += 1u;
      }
      if (high != 0u) {
        atomicAdd(&scratch[at + 1u], high);
      }
    }
  }
}
