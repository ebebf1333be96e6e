// The cut of top_k or top_p: tokens above `key` are kept, and of those at `key` the first `need` by id.
//
// It is found by descending through the 32 bits of the key, 8 a round: rounds 0 to 3 count tokens (top_k), rounds 4 to
// 7 add up weights (top_p, of what top_k kept). Each round is a histogram dispatch; the dispatch after it resolves the
// round, in every workgroup alike (256 bins are quick to search), and the workgroup of block 0 writes the result.

struct Cut {
  prefix: u32,          // the key's digits found so far
  remaining: vec2<u32>, // what is still to be reached within the prefix
  settled: u32,         // 1: key and need are known
  key: u32,
  need: u32,
}

var<workgroup> cut: Cut;
var<workgroup> row_top: atomic<u32>;

fn cut_slot(row: u32, round: u32) -> u32 {
  return row_scratch(row) + CUT_STRIDE * round;
}

fn load_cut(row: u32, round: u32) -> Cut {
  let at = cut_slot(row, round);
  return Cut(
    atomicLoad(&scratch[at]), vec2<u32>(atomicLoad(&scratch[at + 1u]), atomicLoad(&scratch[at + 2u])),
    atomicLoad(&scratch[at + 3u]), atomicLoad(&scratch[at + 4u]), atomicLoad(&scratch[at + 5u]));
}

fn store_cut(row: u32, round: u32, value: Cut) {
  let at = cut_slot(row, round);
  atomicStore(&scratch[at], value.prefix);
  atomicStore(&scratch[at + 1u], value.remaining.x);
  atomicStore(&scratch[at + 2u], value.remaining.y);
  atomicStore(&scratch[at + 3u], value.settled);
  atomicStore(&scratch[at + 4u], value.key);
  atomicStore(&scratch[at + 5u], value.need);
}

fn histogram_at(row: u32, round: u32) -> u32 {
  return row_scratch(row) + HISTOGRAMS + HISTOGRAM_STRIDE * (round % 3u);
}

// Every workgroup's share of finding the row's largest key; a barrier must come between this and atomicLoad(&row_top).
fn gather_top(row: u32, thread: u32) {
  for (var block = thread; block < BLOCKS; block += WG) {
    atomicMax(&row_top, atomicLoad(&scratch[block_record(row, block)]));
  }
}

// Resolves a round whose histogram is complete; the result is in `cut` after it. Called from uniform control flow, and
// for rounds from 4 on after gather_top.
fn resolve(row: u32, thread: u32, round: u32, write: bool) {
  let histogram = histogram_at(row, round);
  for (var i = thread; i < 256u; i += WG) {
    let bin = histogram + 2u * (255u - i);
    set_entry(i, vec2<u32>(atomicLoad(&scratch[bin]), atomicLoad(&scratch[bin + 1u])), 0u);
  }
  workgroupBarrier();
  fold_entries(thread);
  workgroupBarrier();
  if (thread == 0u) {
    let digit = round & 3u;
    let by_weight = round >= 4u;
    let top = atomicLoad(&row_top);
    var now = Cut(0u, vec2<u32>(params.top_k, 0u), 0u, 0u, 0u);
    if (digit != 0u) {
      now = load_cut(row, round - 1u);
    } else if (by_weight) {
      now = first_weight_cut(row, top);
    }
    if (now.settled == 0u) {
      let found = find_entry(now.remaining, Prefix(0u, vec2<u32>(0u, 0u), 0u), 0u, 0u);
      now.prefix |= (255u - found.index) << (24u - 8u * digit);
      now.remaining = sub64(now.remaining, found.weight);
      if (digit == 3u) {
        now.settled = 1u;
        now.key = now.prefix;
        now.need = now.remaining.x;
        if (by_weight) {
          now.need = divide_up(now.remaining, token_weight(now.key, top));
        }
      }
    }
    if (write) {
      store_cut(row, round, now);
    }
    cut = now;
  }
  workgroupBarrier();
}

// The start of top_p: how much weight to reach. The histogram holds what lies above the cut of top_k; if that is not
// enough, the cut of top_p is among the tokens at the cut of top_k.
fn first_weight_cut(row: u32, top: u32) -> Cut {
  var by_count = Cut(0u, vec2<u32>(0u, 0u), 0u, 0u, 0u);
  var unit = 0u;
  if (params.top_k != 0u) {
    by_count = load_cut(row, 3u);
    unit = token_weight(by_count.key, top);
  }
  let above = entries_total().weight;
  let reach = part_of(params.top_p, add64(above, multiply(by_count.need, unit)), true);
  if (less64(above, reach)) {
    return Cut(0u, reach, 1u, by_count.key, divide_up(sub64(reach, above), unit));
  }
  return Cut(0u, reach, 0u, 0u, 0u);
}
