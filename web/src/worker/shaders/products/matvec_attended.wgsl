// x in matvec_q4.wgsl is the result of attention, whose splits are joined here and not by attention_join.wgsl, which has
// the formula. There are two splits at least. The first workgroup also writes the result to attended.
//
// Constants: HEADS, HEAD (a multiple of 8), WINDOW, ALONE and MAX_SPLITS as attention.wgsl's; POSITIONS, its BLOCK.

#reads partials?: array<vec4<f32>>
#reads state: array<u32>
#writes attended: array<Octet>

const QUADS = HEAD / 4u;
const VALUES = HEADS * MAX_SPLITS;

var<workgroup> split_shares: array<f32, VALUES>; // of the result of their head

fn count_splits() -> u32 {
  return min((min(state[0], WINDOW) + POSITIONS - 1u) / POSITIONS, MAX_SPLITS);
}

fn weigh_splits(thread: u32, splits: u32) {
  for (var head = thread; head < HEADS; head += WORKGROUP) {
    let record = head * MAX_SPLITS;
    var weights = array<f32, MAX_SPLITS>(); // first the largest score of each split
    var sums = array<f32, MAX_SPLITS>();
    var most = -1e38;
#repeat s MAX_SPLITS
    let summary = partials[record + s];
    weights[s] = select(-1e38, summary.x, s < splits);
    sums[s] = summary.y;
    most = max(most, weights[s]);
#end
    var sum = 0.0;
#repeat s MAX_SPLITS
    weights[s] = exp2(weights[s] - most);
    sum += select(0.0, weights[s] * sums[s], s < splits);
#end
#repeat s MAX_SPLITS
    split_shares[record + s] = weights[s] / sum;
#end
  }
  workgroupBarrier();
}

fn joined(octet: u32, splits: u32) -> Octet {
  let head = octet * 8u / HEAD;
  var low = vec4<f32>();
  var high = vec4<f32>();
  for (var split = head * MAX_SPLITS; split < head * MAX_SPLITS + splits; split++) {
    let at = VALUES + split * QUADS + octet * 2u % QUADS;
    low += split_shares[split] * partials[at];
    high += split_shares[split] * partials[at + 1u];
  }
#if HALF
  return Octet(as_word(vec2<f16>(low.xy)), as_word(vec2<f16>(low.zw)), //
               as_word(vec2<f16>(high.xy)), as_word(vec2<f16>(high.zw)));
#else
  return Octet(low, high);
#endif
}
