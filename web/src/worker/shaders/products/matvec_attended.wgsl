// x in matvec_q4.wgsl is the result of attention, whose splits are joined here and not by attention_join.wgsl, which has
// the formula. There are two splits at least. The first workgroup also writes the result to attended.
//
// SHUFFLED: MAX_SPLITS divides LANES. Other constants: HEADS, HEAD (a multiple of 8), WINDOW, ALONE and MAX_SPLITS as attention.wgsl's; POSITIONS, its BLOCK.

#reads partials?: array<vec4<f32>>
#reads state?: array<u32>
#writes attended?: array<Octet>

const QUADS = HEAD / 4u;
const VALUES = HEADS * MAX_SPLITS;

var<workgroup> split_shares: array<f32, VALUES>; // of the result of their head

fn count_splits() -> u32 {
  return min((min(state[0], WINDOW) + POSITIONS - 1u) / POSITIONS, MAX_SPLITS);
}

#if SHUFFLED
// A lane has a split; MAX_SPLITS divides LANES, so that a head's lanes are in one subgroup.
fn weigh_splits(thread: u32, splits: u32) {
  for (var first = 0u; first < VALUES; first += WORKGROUP) {
    let at = first + thread;
    let summary = partials[min(at, VALUES - 1u)];
    let counts = at % MAX_SPLITS < splits;
    let largest = select(-1e38, summary.x, counts);
    var most = largest;
    for (var mask = MAX_SPLITS / 2u; mask > 0u; mask >>= 1u) {
      most = max(most, subgroupShuffleXor(most, mask));
    }
    let weight = exp2(largest - most);
    var sum = select(0.0, weight * summary.y, counts);
    for (var mask = MAX_SPLITS / 2u; mask > 0u; mask >>= 1u) {
      sum += subgroupShuffleXor(sum, mask);
    }
    if (at < VALUES) {
      split_shares[at] = weight / sum;
    }
  }
  workgroupBarrier();
}
#else
fn weigh_splits(thread: u32, splits: u32) {
  for (var head = thread; head < HEADS; head += WORKGROUP) {
    let record = head * MAX_SPLITS;
    var most = -1e38;
    for (var s = 0u; s < splits; s++) {
      most = max(most, partials[record + s].x);
    }
    var sum = 0.0;
    for (var s = 0u; s < splits; s++) {
      sum += exp2(partials[record + s].x - most) * partials[record + s].y;
    }
    for (var s = 0u; s < splits; s++) {
      split_shares[record + s] = exp2(partials[record + s].x - most) / sum;
    }
  }
  workgroupBarrier();
}
#endif

// Loads are made four splits at a time; those past the last one are its, with no share.
fn joined(octet: u32, splits: u32) -> Octet {
  let record = octet * 8u / HEAD * MAX_SPLITS;
  var low = vec4<f32>();
  var high = vec4<f32>();
  for (var first = 0u; first < splits; first += 4u) {
#repeat i 4
    let split = record + min(first + i, splits - 1u);
    let at = VALUES + split * QUADS + octet * 2u % QUADS;
    let share = select(0.0, split_shares[split], first + i < splits);
    low += share * partials[at];
    high += share * partials[at + 1u];
#end
  }
#if HALF
  return Octet(as_word(vec2<f16>(low.xy)), as_word(vec2<f16>(low.zw)), //
               as_word(vec2<f16>(high.xy)), as_word(vec2<f16>(high.zw)));
#else
  return Octet(low, high);
#endif
}
