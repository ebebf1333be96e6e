// Finding where a running sum over 256 entries reaches a value, by one workgroup in two levels of 16.
//
// An entry is a weight (u64) and a number of tokens at the cut, each of weight `unit`, of which only the first `need`
// count. Use: every thread fills its entries; barrier; fold_entries; barrier; then thread 0 alone calls
// entries_total and find_entry.

struct Prefix {
  index: u32,        // the entry at which the sum reaches the limit
  weight: vec2<u32>, // weight before it
  equals: u32,       // tokens at the cut before it
}

var<workgroup> entry_low: array<u32, 256>;
var<workgroup> entry_high: array<u32, 256>;
var<workgroup> entry_equals: array<u32, 256>;
var<workgroup> group_weight: array<vec2<u32>, 16>;
var<workgroup> group_equals: array<u32, 16>;

fn set_entry(index: u32, weight: vec2<u32>, equals: u32) {
  entry_low[index] = weight.x;
  entry_high[index] = weight.y;
  entry_equals[index] = equals;
}

fn fold_entries(thread: u32) {
  if (thread < 16u) {
    var weight = vec2<u32>(0u, 0u);
    var equals = 0u;
    for (var i = thread * 16u; i < thread * 16u + 16u; i++) {
      weight = add64(weight, vec2<u32>(entry_low[i], entry_high[i]));
      equals += entry_equals[i];
    }
    group_weight[thread] = weight;
    group_equals[thread] = equals;
  }
}

fn entries_total() -> Prefix {
  var total = Prefix(256u, vec2<u32>(0u, 0u), 0u);
  for (var i = 0u; i < 16u; i++) {
    total.weight = add64(total.weight, group_weight[i]);
    total.equals += group_equals[i];
  }
  return total;
}

fn kept_weight(weight: vec2<u32>, equals: u32, need: u32, unit: u32) -> vec2<u32> {
  return add64(weight, multiply(min(equals, need), unit));
}

// The first entry at which the sum, `before` included, is at least `limit`; the last entry if there is none.
fn find_entry(limit: vec2<u32>, before: Prefix, need: u32, unit: u32) -> Prefix {
  var found = before;
  var group = 0u;
  for (; group < 15u; group++) {
    let weight = add64(found.weight, group_weight[group]);
    let equals = found.equals + group_equals[group];
    if (!less64(kept_weight(weight, equals, need, unit), limit)) {
      break;
    }
    found.weight = weight;
    found.equals = equals;
  }
  var index = group * 16u;
  for (; index < group * 16u + 15u; index++) {
    let weight = add64(found.weight, vec2<u32>(entry_low[index], entry_high[index]));
    let equals = found.equals + entry_equals[index];
    if (!less64(kept_weight(weight, equals, need, unit), limit)) {
      break;
    }
    found.weight = weight;
    found.equals = equals;
  }
  found.index = index;
  return found;
}
