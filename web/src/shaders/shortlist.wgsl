// Finds the largest logits of a row, and the sum that turns logits into probabilities.
//
// Writes Σ exp(logit - largest) as a float32, then `count` pairs of a float32 and its token: the largest logits in order,
// the lowest token first among equals. NaN counts as -inf, -0 as +0, as in py_src/capstan/sampling.py.
// Dispatch: (1). Bindings: 0 logits (float32, or float16 two to a word), 1 result, 2 params.
// Limits: count is at most vocab; each of them is one pass of the workgroup over the row.

struct Params {
  vocab: u32,
  half: u32,
  count: u32,
  unused: u32,
}

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> result: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

const WG = 256u;
const NEGATIVE_INFINITY_KEY = 0x007fffffu;

var<workgroup> keys: array<u32, WG>;
var<workgroup> tokens: array<u32, WG>;
var<workgroup> sums: array<f32, WG>;

// The float32 with the value of a float16; subnormal ones too.
fn widened(half: u32) -> u32 {
  let sign = (half & 0x8000u) << 16u;
  let exponent = (half >> 10u) & 31u;
  let fraction = half & 0x3ffu;
  if (exponent == 31u) {
    return sign | 0x7f800000u | (fraction << 13u);
  }
  if (exponent != 0u) {
    return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
  }
  if (fraction == 0u) {
    return sign;
  }
  let leading = firstLeadingBit(fraction);
  return sign | ((leading + 103u) << 23u) | ((fraction << (23u - leading)) & 0x7fffffu);
}

// A u32 of the same order as the logits.
fn key_of(token: u32) -> u32 {
  var bits = 0u;
  if (params.half != 0u) {
    bits = widened((logits[token >> 1u] >> ((token & 1u) * 16u)) & 0xffffu);
  } else {
    bits = logits[token];
  }
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return NEGATIVE_INFINITY_KEY;
  }
  if (magnitude == 0u) {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

fn bits_of(key: u32) -> u32 {
  return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
  var last_key = 0xffffffffu;
  var last_token = 0u;
  var top = 0u;
  for (var place = 0u; place < params.count; place++) {
    // The first behind the last one found.
    var key = 0u;
    var token = 0u;
    for (var at = thread; at < params.vocab; at += WG) {
      let found = key_of(at);
      if (found > key && (found < last_key || (found == last_key && at > last_token))) {
        key = found;
        token = at;
      }
    }
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
    last_key = keys[0];
    last_token = tokens[0];
    top = select(top, last_key, place == 0u);
    if (thread == 0u) {
      result[1u + 2u * place] = bits_of(last_key);
      result[2u + 2u * place] = last_token;
    }
    workgroupBarrier();
  }
  var sum = 0.0;
  for (var at = thread; at < params.vocab; at += WG) {
    let key = key_of(at);
    if (key == top) {
      sum += 1.0;
    } else if (key != NEGATIVE_INFINITY_KEY) {
      sum += exp(bitcast<f32>(bits_of(key)) - bitcast<f32>(bits_of(top)));
    }
  }
  sums[thread] = sum;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (thread < stride) {
      sums[thread] += sums[thread + stride];
    }
    workgroupBarrier();
  }
  if (thread == 0u) {
    result[0] = bitcast<u32>(sums[0]);
  }
}
