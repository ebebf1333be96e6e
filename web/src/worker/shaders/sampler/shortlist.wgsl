// Finds the largest logits of rows, and the sums that turn logits into probabilities.
//
// Writes of each row Σ exp(logit - largest) as a float32, then `count` pairs of a float32 and its token: the largest logits
// in order, the lowest token first among equals. keys.wgsl comes before it.
// `blocks` finds the same of each BLOCK tokens, with keys for logits; dispatch: (blocks, rows). `join` finds the row's in
// those; dispatch: (rows). Bindings: 0 logits (float32, or float16 two to a word), 1 parts, 2 result, 3 params.
// `score` finds of each row the logit of the token that `result` has for it, the largest one's token, that logit, and the
// sum: four words a row, from the one that `count` numbers on; dispatch: (rows). It binds no parts.
// Limits: count is at most vocab; each of them is one pass of a workgroup over its block, and over what blocks found.

struct Params {
  vocab: u32,
  half: u32,
  count: u32,
  start: u32, // of the first row, in elements
  blocks: u32,
  kept: u32, // of each block: min(count, BLOCK)
  unused0: u32,
  unused1: u32,
}

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> parts: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

const BLOCK = 4096u;
const WG = 256u;

var<workgroup> keys: array<u32, WG>;
var<workgroup> tokens: array<u32, WG>;
var<workgroup> sums: array<f32, WG>;

// A u32 of the same order as the logits.
fn key_at(at: u32) -> u32 {
  if (params.half != 0u) {
    return key_of(float32_bits((logits[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu));
  }
  return key_of(logits[at]);
}

fn bits_of(key: u32) -> u32 {
  return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}

// exp(key's logit - top's): 1 for the same, also where both are infinite.
fn share(key: u32, top: u32) -> f32 {
  if (key == top) {
    return 1.0;
  }
  if (key == NEGATIVE_INFINITY_KEY) {
    return 0.0;
  }
  return exp(bitcast<f32>(bits_of(key)) - bitcast<f32>(bits_of(top)));
}

// The largest of all threads' keys, the lowest token first among equals, is in keys[0] and tokens[0] then.
fn largest_of(thread: u32, key: u32, token: u32) {
  keys[thread] = key;
  tokens[thread] = token;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (thread < stride) {
      let other = keys[thread + stride];
      let closer = tokens[thread + stride] < tokens[thread];
      if (other > keys[thread] || (other == keys[thread] && closer)) {
        keys[thread] = other;
        tokens[thread] = tokens[thread + stride];
      }
    }
    workgroupBarrier();
  }
}

// The sum of all threads' numbers is in sums[0] then.
fn sum_of(thread: u32, sum: f32) {
  sums[thread] = sum;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (thread < stride) {
      sums[thread] += sums[thread + stride];
    }
    workgroupBarrier();
  }
}

// No logit has the key 0: it stands for nothing.
fn is_next(key: u32, token: u32, last_key: u32, last_token: u32) -> bool {
  return key < last_key || (key == last_key && token > last_token);
}

@compute @workgroup_size(WG)
fn blocks(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
  let row = params.start + group.y * params.vocab;
  let to = (group.y * params.blocks + group.x) * (1u + 2u * params.kept);
  let end = min((group.x + 1u) * BLOCK, params.vocab);
  var last_key = 0xffffffffu;
  var last_token = 0u;
  var top = 0u;
  for (var place = 0u; place < params.kept; place++) {
    var key = 0u;
    var token = 0u;
    for (var at = group.x * BLOCK + thread; at < end; at += WG) {
      let found = key_at(row + at);
      if (found > key && is_next(found, at, last_key, last_token)) {
        key = found;
        token = at;
      }
    }
    largest_of(thread, key, token);
    last_key = keys[0];
    last_token = tokens[0];
    top = select(top, last_key, place == 0u);
    if (thread == 0u) {
      parts[to + 1u + 2u * place] = last_key;
      parts[to + 2u + 2u * place] = last_token;
    }
    workgroupBarrier();
  }
  var sum = 0.0;
  for (var at = group.x * BLOCK + thread; at < end; at += WG) {
    sum += share(key_at(row + at), top);
  }
  sum_of(thread, sum);
  if (thread == 0u) {
    parts[to] = bitcast<u32>(sums[0]);
  }
}

@compute @workgroup_size(WG)
fn join(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
  let size = 1u + 2u * params.kept;
  let begin = group.x * params.blocks * size;
  let to = group.x * (1u + 2u * params.count);
  var last_key = 0xffffffffu;
  var last_token = 0u;
  var top = 0u;
  for (var place = 0u; place < params.count; place++) {
    var key = 0u;
    var token = 0u;
    for (var at = thread; at < params.blocks * params.kept; at += WG) {
      let pair = begin + (at / params.kept) * size + 1u + 2u * (at % params.kept);
      let found = parts[pair];
      let its = parts[pair + 1u];
      if ((found > key || (found == key && its < token)) && is_next(found, its, last_key, last_token)) {
        key = found;
        token = its;
      }
    }
    largest_of(thread, key, token);
    last_key = keys[0];
    last_token = tokens[0];
    top = select(top, last_key, place == 0u);
    if (thread == 0u) {
      result[to + 1u + 2u * place] = bits_of(last_key);
      result[to + 2u + 2u * place] = last_token;
    }
    workgroupBarrier();
  }
  var sum = 0.0;
  for (var at = thread; at < params.blocks; at += WG) {
    sum += bitcast<f32>(parts[begin + at * size]) * share(parts[begin + at * size + 1u], top);
  }
  sum_of(thread, sum);
  if (thread == 0u) {
    result[to] = bitcast<u32>(sums[0]);
  }
}

@compute @workgroup_size(WG)
fn score(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
  let row = params.start + group.x * params.vocab;
  let to = 4u * (params.count + group.x);
  var key = 0u;
  var token = 0u;
  for (var at = thread; at < params.vocab; at += WG) {
    let found = key_at(row + at);
    if (found > key) {
      key = found;
      token = at;
    }
  }
  largest_of(thread, key, token);
  let top = keys[0];
  var sum = 0.0;
  for (var at = thread; at < params.vocab; at += WG) {
    sum += share(key_at(row + at), top);
  }
  sum_of(thread, sum);
  if (thread == 0u) {
    result[to] = bits_of(key_at(row + result[to]));
    result[to + 1u] = tokens[0];
    result[to + 2u] = bits_of(top);
    result[to + 3u] = bitcast<u32>(sums[0]);
  }
}
