// Ends a sampled step: draws a token of each row from the block sums, by id, and advances the row.
//
// Dispatch: (1, rows). After sampler.wgsl, prefix.wgsl, cut.wgsl and advance.wgsl.

var<workgroup> limit: vec2<u32>; // the draw + 1: the first token whose running sum is at least this
var<workgroup> chosen: Prefix;   // the block that contains the draw

// Word 0 of Philox4x32-10, keyed by the seed.
fn philox(counter_0: u32, counter_1: u32) -> u32 {
  var counter = vec4<u32>(counter_0, counter_1, 0u, 0u);
  var key = vec2<u32>(params.seed_low, params.seed_high);
  for (var i = 0u; i < 10u; i++) {
    let product0 = multiply(0xd2511f53u, counter.x);
    let product1 = multiply(0xcd9e8d57u, counter.z);
    counter = vec4<u32>(product1.y ^ counter.y ^ key.x, product1.x, product0.y ^ counter.w ^ key.y, product0.x);
    key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return counter.x;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  gather_top(row, thread);
  for (var i = thread; i < 256u; i += WG) {
    var weight = vec2<u32>(0u, 0u);
    var equals = 0u;
    if (i < BLOCKS) {
      let record = block_record(row, i);
      weight = vec2<u32>(atomicLoad(&scratch[record + 2u]), atomicLoad(&scratch[record + 3u]));
      equals = atomicLoad(&scratch[record + 4u]);
    }
    set_entry(i, weight, equals);
  }
  workgroupBarrier();
  let top = atomicLoad(&row_top);
  fold_entries(thread);
  workgroupBarrier();
  if (thread == 0u) {
    if (params.top_p != 0u) {
      cut = load_cut(row, 7u);
    } else if (params.top_k != 0u) {
      cut = load_cut(row, 3u);
    }
    let unit = kept(token_weight(cut.key, top));
    let sums = entries_total();
    let total = kept_weight(sums.weight, sums.equals, cut.need, unit);
    let draw = part_of(philox(state[row * STATE_STRIDE], params.first_row + row), total, false);
    limit = add64(draw, vec2<u32>(1u, 0u));
    chosen = find_entry(limit, Prefix(0u, vec2<u32>(0u, 0u), 0u), cut.need, unit);
  }
  workgroupBarrier();
  // The chosen block again, a run of consecutive tokens a thread.
  let cut_key = cut.key;
  let run = BLOCK / WG;
  let begin = chosen.index * BLOCK;
  var weight = vec2<u32>(0u, 0u);
  var equals = 0u;
  let end = min(VOCAB, begin + (thread + 1u) * run);
  for (var token = begin + thread * run; token < end; token++) {
    let key = token_key(row, token);
    if (key > cut_key) {
      weight = add64(weight, vec2<u32>(kept(token_weight(key, top)), 0u));
    } else if (key == cut_key) {
      equals += 1u;
    }
  }
  for (var i = thread; i < 256u; i += WG) {
    set_entry(i, vec2<u32>(0u, 0u), 0u);
  }
  set_entry(thread, weight, equals);
  workgroupBarrier();
  fold_entries(thread);
  workgroupBarrier();
  if (thread == 0u) {
    let unit = kept(token_weight(cut_key, top));
    var sums = find_entry(limit, chosen, cut.need, unit);
    var picked = NO_TOKEN;
    if (top > NEGATIVE_INFINITY_KEY) {
      let first = begin + sums.index * run;
      let last = min(VOCAB, first + run);
      picked = last - 1u;
      for (var token = first; token < last; token++) {
        let key = token_key(row, token);
        if (key > cut_key) {
          sums.weight = add64(sums.weight, vec2<u32>(kept(token_weight(key, top)), 0u));
        } else if (key == cut_key) {
          sums.equals += 1u;
        }
        if (!less64(kept_weight(sums.weight, sums.equals, cut.need, unit), limit)) {
          picked = token;
          break;
        }
      }
    } else if (!has_nothing(top)) {
      // Nothing is above -inf: the first token that is no less.
      for (var block = BLOCKS; block > 0u; block--) {
        let record = block_record(row, block - 1u);
        if (atomicLoad(&scratch[record]) == top) {
          picked = atomicLoad(&scratch[record + 1u]);
        }
      }
    }
    advance(row, picked);
  }
}
