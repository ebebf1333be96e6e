// Shared by every sampler kernel: sizes, parameters, 64-bit integers, and a token's key and weight.
//
// All of it is integer arithmetic on the logits' bits, the same as py_src/capstan/stages/sampling.py, which defines it:
// WGSL's float operations may be fused, may flush subnormals and may assume that there is no NaN.
// A u64 is a vec2<u32>: x the low word, y the high one.
//
// Limits: a row's vocabulary is at most 2^24 (a total weight then stays below 2^54) and at most 256 blocks;
// rows * VOCAB is below 2^32.

override WG: u32 = 256u;       // workgroup size: 64 to 256, a multiple of 16
override VOCAB: u32 = 1u;
override BLOCK: u32 = 2048u;   // tokens that one workgroup reads: a multiple of WG
override BLOCKS: u32 = 1u;     // blocks in a row: ceil(VOCAB / BLOCK), at most 256
override HALF: bool = false;   // logits are float16, two to a word
override POSITIONS: u32 = 1u;  // positions of a drafted step, of one row: logits are [POSITIONS, VOCAB]; else 1

const NO_TOKEN = 0xffffffffu; // of a row that has_nothing
const POSITIVE_INFINITY_KEY = 0xff800000u;
const STATE_STRIDE = 8u;
const PLACE = 5u;   // word of a row's state: which position of a drafted step is picked next
const REFUSED = 6u; // and whether a pick of the step was not the draft

// `struct Params`, `HAS_COUNTS`, `HAS_BANS`, `HAS_ALLOWED`, `HAS_SEQUENCE`, `edited` and `kept`, and `ban_all` for ban.wgsl, are in
// the text that capstan.stages gives (SamplerProgram), and what constrain.wgsl and advance.wgsl call. They call these
// functions, which are here: `logit_key`, `weight_beside`, `multiply`, `add64`, `sub64`, `is_end`, `has_token`, `picks_of`, `is_allowed`,
// `sequence_token`, `sequence_length`, and `ban` in ban.wgsl. BINDINGS in
// web/src/worker/gpu/sampler_program.ts has what each kernel binds: `state` and `memory` among them.

// Scratch, a row: 8 cuts of 8 words (one a histogram round), 3 histograms of 256 bins of a u64 (rounds take turns),
// then 8 words a block: largest key, its lowest token, weight above the cut (u64), tokens at the cut.
const CUT_STRIDE = 8u;
const HISTOGRAMS = 64u;
const HISTOGRAM_STRIDE = 512u;
const BLOCK_RECORDS = 1600u;
const BLOCK_STRIDE = 8u;

fn row_scratch(row: u32) -> u32 {
  return row * (BLOCK_RECORDS + BLOCK_STRIDE * BLOCKS);
}

fn block_record(row: u32, block: u32) -> u32 {
  return row_scratch(row) + BLOCK_RECORDS + BLOCK_STRIDE * block;
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn multiply(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let low = al * bl;
  let cross1 = ah * bl;
  let cross2 = al * bh;
  let middle = (low >> 16u) + (cross1 & 0xffffu) + (cross2 & 0xffffu);
  return vec2<u32>((low & 0xffffu) | (middle << 16u), ah * bh + (cross1 >> 16u) + (cross2 >> 16u) + (middle >> 16u));
}

// The part of `fraction` * 2^-32 of a u64, rounded down, or up when `up`.
fn part_of(fraction: u32, value: vec2<u32>, up: bool) -> vec2<u32> {
  let low = multiply(fraction, value.x);
  let part = add64(multiply(fraction, value.y), vec2<u32>(low.y, 0u));
  return add64(part, vec2<u32>(select(0u, 1u, up && low.x != 0u), 0u));
}

// ceil(a / b), for 1 <= b <= 2^31 and a quotient below 2^32.
fn divide_up(a: vec2<u32>, b: u32) -> u32 {
  var rest = 0u;
  var quotient = 0u;
  for (var i = 0u; i < 64u; i++) {
    let bit = 63u - i;
    let word = select(a.x, a.y, bit >= 32u);
    rest = (rest << 1u) | ((word >> (bit & 31u)) & 1u);
    quotient = quotient << 1u;
    if (rest >= b) {
      rest -= b;
      quotient |= 1u;
    }
  }
  return quotient + select(0u, 1u, rest != 0u);
}

fn is_end(token: u32) -> bool {
  for (var i = 0u; i < params.end_count; i++) {
    if (params.ends[i >> 2u][i & 3u] == token) {
      return true;
    }
  }
  return false;
}

// A row's part of the memory; what it has, and where, the stages say.
fn row_memory(row: u32) -> u32 {
  return params.rows_at + row * params.row_words;
}

// Whether the row's sequence has the token; only with HAS_COUNTS.
fn has_token(row: u32, token: u32) -> bool {
  return memory[row_memory(row) + token] != 0u;
}

// How often it was picked since tokens were last appended; only with HAS_COUNTS.
fn picks_of(row: u32, token: u32) -> u32 {
  return memory[row_memory(row) + token] & 0x7fffffffu;
}

// Whether the mask has the token; only for stages with `allowed`.
fn is_allowed(row: u32, token: u32) -> bool {
  return ((memory[row_memory(row) + params.allowed_at + (token >> 5u)] >> (token & 31u)) & 1u) != 0u;
}

// A token of the row's sequence; only with HAS_SEQUENCE.
fn sequence_token(row: u32, index: u32) -> u32 {
  return memory[row_memory(row) + params.ids_at + 1u + index];
}

// A draft of the step; only where there are some.
fn draft_slot(index: u32) -> u32 {
  return params.rows_at + params.drafts_at + index;
}

// How many it has, padding of the prompt among them; only with HAS_SEQUENCE.
fn sequence_length(row: u32) -> u32 {
  return state[row * STATE_STRIDE] + memory[row_memory(row) + params.ids_at];
}

// The slot of a token's last ban: the length at that time plus 1; only with HAS_BANS.
fn ban_slot(row: u32, token: u32) -> u32 {
  return row_memory(row) + params.bans_at + token;
}

// The key of a token's logit, before any stage.
fn logit_key(row: u32, token: u32) -> u32 {
  var place = row;
  if (POSITIONS > 1u) {
    place = state[PLACE];
  }
  let index = place * VOCAB + token;
  var bits = 0u;
  if (HALF) {
    bits = float32_bits((logits[index >> 1u] >> ((index & 1u) * 16u)) & 0xffffu);
  } else {
    bits = logits[index];
  }
  return key_of(bits);
}

fn token_key(row: u32, token: u32) -> u32 {
  if (HAS_BANS) {
    if (memory[ban_slot(row, token)] == state[row * STATE_STRIDE] + 1u) {
      return NEGATIVE_INFINITY_KEY;
    }
  }
  return edited(row, token, logit_key(row, token));
}

// Whether a row with this largest key has no token to pick. One of the tokens that the host allows is picked all the
// same.
fn has_nothing(top: u32) -> bool {
  return top <= NEGATIVE_INFINITY_KEY && !HAS_ALLOWED;
}

// The float32 with this key: x biased exponent, y significand shifted left by 7.
fn magnitude_of(key: u32) -> vec2<u32> {
  let bits = select(~key, key, key >= 0x80000000u) & 0x7fffffffu;
  let exponent = bits >> 23u;
  if (exponent == 0u) {
    return vec2<u32>(1u, bits << 7u);
  }
  return vec2<u32>(exponent, ((bits & 0x7fffffu) | 0x800000u) << 7u);
}

// exp((logit - largest) / temperature) * 2^30 for the keys of both, as token_weight in py_src/capstan/stages/weight.py
// computes it; `scale` and `scale_shift` are the temperature's.
fn weight_beside(key: u32, top: u32, scale: u32, scale_shift: i32) -> u32 {
  if (key == top) {
    return 0x40000000u;
  }
  if (key <= NEGATIVE_INFINITY_KEY || top == POSITIVE_INFINITY_KEY) {
    return 0u;
  }
  let larger = magnitude_of(top);
  let smaller = magnitude_of(key);
  let exponent = max(larger.x, smaller.x);
  let a = larger.y >> min(exponent - larger.x, 31u);
  let b = smaller.y >> min(exponent - smaller.x, 31u);
  var difference = a - b;
  if (top < 0x80000000u) {
    difference = b - a;
  } else if (key < 0x80000000u) {
    difference = a + b;
  }
  let product = multiply(difference, scale);
  let shift = scale_shift - i32(exponent);
  var z = 0xffffffffu;
  if (difference == 0u || shift >= 64) {
    z = 0u;
  } else if (shift >= 32) {
    z = product.y >> u32(shift - 32);
  } else if (shift > 0) {
    if ((product.y >> u32(shift)) == 0u) {
      z = (product.y << u32(32 - shift)) | (product.x >> u32(shift));
    }
  } else if (shift == 0 && product.y == 0u) {
    z = product.x;
  }
  let octaves = z >> 27u;
  if (octaves >= 31u) {
    return 0u;
  }
  let fraction = z << 5u;
  var power = 39538602u - multiply(4058330u, fraction).y;
  power = 237500345u - multiply(power, fraction).y;
  power = 1031565859u - multiply(power, fraction).y;
  power = 2977029614u - multiply(power, fraction).y;
  power = 0x80000000u - (multiply(power, fraction).y >> 1u);
  return (power + (1u << octaves)) >> (1u + octaves);
}

fn token_weight(key: u32, top: u32) -> u32 {
  return weight_beside(key, top, params.scale, bitcast<i32>(params.shift));
}
