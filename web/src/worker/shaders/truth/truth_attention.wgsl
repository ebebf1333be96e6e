// The truth for attention of one new token, in float32, and a bound of its rounding errors: plain loops.
//
// The operation of attention.wgsl, in three kernels: that with key_cache makes the score of each head and position, that
// with value_cache the softmax over them and the sum of the values, that with neither what the caches must hold at the new
// position. state[0] counts the new token. SLIDING: as in attention_shared.wgsl.
// Each truth is (value, spread), as in truth_gemv.wgsl; the spread of a result has that of the scores in it: an error d of
// a score changes the result by p * |v - result| * d, where p is the weight of the position and v its value.
// NORMED: q and k are normalised before they are rotated, with EPSILON, as in attention.wgsl; with v_gamma, so is v.
// scores are [HEADS, LONGEST].
// The softmax is over the last WINDOW positions. SOFTCAPPED: with SOFTCAP, as in attention.wgsl.
// ROTARY and INTERLEAVED: how heads are rotated, as in attention.wgsl.
// QUANTIZED, FOUR_BITS, WRITTEN, PREPARED, WHOLE: as in attention_shared.wgsl. CACHED: the new rows are read from the caches like the others,
// since they are WRITTEN, or QUANTIZED: a truth that is rounded to a step would be as far from a sound row as a whole step.
// TURNED: the rows of the caches are turned by a Hadamard matrix, and so is a query before its scores; a result is turned back.
// Constants: HEADS, KV_HEADS, HEAD, CAPACITY, WINDOW, SCALE; LONGEST, positions that a row of the scores has room for;
// VALUES_AT, where the values for the cache begin.
// Dispatch, of these: (length / 64, HEADS), (HEADS * HEAD / 64), (KV_HEADS * HEAD / 64).

#reads qkv: array<element>
#if !WHOLE
#reads state: array<u32>
#endif
#reads cos_cache?: array<element>
#reads sin_cache?: array<element>
#reads q_gamma?: array<element>
#reads k_gamma?: array<element>
#reads v_gamma?: array<element>
#if QUANTIZED
#reads key_cache?: array<u32>
#reads value_cache?: array<u32>
#else
#reads key_cache?: array<element>
#reads value_cache?: array<element>
#endif
#reads head_sink?: array<element>
#if key_cache
#writes scores?: array<vec2<f32>>
#else
#reads scores?: array<vec2<f32>>
#endif
#writes truth?: array<vec2<f32>>

const GROUP = HEADS / KV_HEADS;
const HALF_ROTARY = ROTARY / 2u;
const KEYS = HEADS * QUERY_HEAD; // where the keys of qkv begin
const VALUES = KEYS + KV_HEADS * HEAD;

#if QUANTIZED
#include quantized_element
#endif

#if !WHOLE
#include held
#endif

// The positions that the caches of a sequence hold up to the new one.
fn seen(sequence: u32) -> u32 {
#if WHOLE
  return CAPACITY;
#else
  return held(sequence);
#endif
}

#if key_cache
// Element i of a row of the keys; rows are numbered through all heads.
fn cached_key(row: u32, i: u32) -> f32 {
#if QUANTIZED
  return element_of_row(key_cache[row * ROW + 1u + i / IN_WORD], i % IN_WORD) * bitcast<f32>(key_cache[row * ROW]);
#else
  return f32(key_cache[row * HEAD + i]);
#endif
}
#endif

#if value_cache
// Element i of a row of the values.
fn cached_value(row: u32, i: u32) -> f32 {
#if TURNED
  var sum = 0.0;
  for (var j = 0u; j < HEAD; j++) {
    sum += element_of_row(value_cache[row * ROW + 1u + j / IN_WORD], j % IN_WORD) * turn(i, j);
  }
  return sum * bitcast<f32>(value_cache[row * ROW]);
#else
#if QUANTIZED
  return element_of_row(value_cache[row * ROW + 1u + i / IN_WORD], i % IN_WORD) * bitcast<f32>(value_cache[row * ROW]);
#else
  return f32(value_cache[row * HEAD + i]);
#endif
#endif
}
#endif

// One over the root mean square of the head that begins at `at`; 1 without norms.
fn inverse_size(at: u32) -> f32 {
#if NORMED
  var sum = 0.0;
  for (var i = 0u; i < HEAD; i++) {
    let x = f32(qkv[at + i]);
    sum += x * x;
  }
  return inverseSqrt(sum / f32(HEAD) + EPSILON);
#else
  return 1.0;
#endif
}

#if truth
#if !WRITTEN
// Element i of the new values of a head, as the cache holds it.
fn new_value(kv_head: u32, i: u32) -> f32 {
  let at = VALUES + kv_head * HEAD;
  let value = f32(qkv[at + i]);
#if v_gamma
  return f32(element(value * inverse_size(at) * f32(v_gamma[i])));
#else
  return value;
#endif
}
#endif
#endif

#if cos_cache
// Element i of the head that begins at `at`, normalised; `inverse` is the head's inverse_size.
fn normalised(at: u32, i: u32, inverse: f32) -> f32 {
  var factor = inverse;
#if q_gamma
#if k_gamma
  factor *= f32(select(k_gamma[i], q_gamma[i], at < KEYS));
#else
  factor *= f32(q_gamma[i]);
#endif
#else
#if k_gamma
  factor *= f32(k_gamma[i]);
#endif
#endif
  return f32(qkv[at + i]) * factor;
}

// The same rotated to a position: its two terms.
fn rotated(at: u32, i: u32, position: u32, inverse: f32) -> vec2<f32> {
  if (i >= ROTARY) {
    return vec2<f32>(normalised(at, i, inverse), 0.0);
  }
#if INTERLEAVED
  let angle = position * HALF_ROTARY + i / 2u;
  let pair = i ^ 1u;
  let first = i % 2u == 0u;
#else
  let angle = position * HALF_ROTARY + i % HALF_ROTARY;
  let pair = (i + HALF_ROTARY) % ROTARY;
  let first = i < HALF_ROTARY;
#endif
  let other = normalised(at, pair, inverse) * f32(sin_cache[angle]);
  return vec2<f32>(normalised(at, i, inverse) * f32(cos_cache[angle]), select(other, -other, first));
}
#endif

#if TURNED
// An element of the Hadamard matrix.
fn turn(i: u32, j: u32) -> f32 {
  return select(1.0, -1.0, countOneBits(i & j) % 2u == 1u) / sqrt(f32(HEAD));
}
#endif

#if key_cache
// A score (value, spread) with its soft cap, whose slope is at most 1.
fn capped(score: vec2<f32>) -> vec2<f32> {
#if SOFTCAPPED
  let value = SOFTCAP * tanh(clamp(score.x / SOFTCAP, -10.0, 10.0));
  // tanh of small numbers has the rounding errors of numbers around 1, in f32.
#if HALF
  const least = SOFTCAP / 8192.0;
#else
  const least = SOFTCAP;
#endif
  return vec2<f32>(value, score.y + abs(value) + least);
#else
  return score;
#endif
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let length = seen(0u);
  let position = length - 1u;
  let first = length - min(length, WINDOW); // in sight
#if key_cache
  let at = id.x;
  let head = id.y;
  if (at < first || at >= length) {
    return;
  }
  let kv_head = head / GROUP;
#if !PREPARED
  let q_inverse = inverse_size(head * QUERY_HEAD);
#endif
#if !WRITTEN
  let new_key = KEYS + kv_head * HEAD;
  let k_inverse = inverse_size(new_key);
#endif
  var sum = 0.0;
  var squares = 0.0;
#if TURNED
  var plain = array<f32, HEAD>();
  var query = array<f32, HEAD>();
  var size = 0.0; // of the terms that are turned
  for (var i = 0u; i < HEAD; i++) {
    let terms = rotated(head * QUERY_HEAD, i, position, q_inverse);
    plain[i] = terms.x + terms.y;
    size += (abs(terms.x) + abs(terms.y)) * (abs(terms.x) + abs(terms.y)) / f32(HEAD);
  }
  for (var i = 0u; i < HEAD; i++) {
    for (var j = 0u; j < HEAD; j++) {
      query[i] += plain[j] * turn(i, j);
    }
  }
#endif
  for (var i = 0u; i < HEAD; i++) {
#if PREPARED
    let q = vec2<f32>(f32(qkv[head * QUERY_HEAD + i]), 0.0);
#else
#if TURNED
    let q = vec2<f32>(query[i], 0.0);
#else
    let q = rotated(head * QUERY_HEAD, i, position, q_inverse);
#endif
#endif
    var key = cached_key(kv_head * CAPACITY + min(at, CAPACITY - 1u), i);
#if !CACHED
    if (at == position) {
      let k = rotated(new_key, i, position, k_inverse);
      key = f32(element(k.x + k.y));
    }
#endif
    let term = (q.x + q.y) * key;
    // Both terms of a rotated element may exceed the element.
#if TURNED
    let most = (abs(q.x) + sqrt(size)) * abs(key);
#else
    let most = (abs(q.x) + abs(q.y)) * abs(key);
#endif
    sum += term;
    squares += most * most;
  }
  scores[head * LONGEST + at] = capped(vec2<f32>(sum * SCALE, (sqrt(squares) + abs(sum)) * abs(SCALE)));
#endif
#if value_cache
  if (id.x >= HEADS * HEAD) {
    return;
  }
  let head = id.x / HEAD;
  let kv_head = head / GROUP;
  let i = id.x % HEAD;
  let row = head * LONGEST;
#if CACHED
  let latest = cached_value(kv_head * CAPACITY + position, i);
#else
  let latest = new_value(kv_head, i);
#endif
  var most = scores[row + first].x;
  for (var at = first + 1u; at < length; at++) {
    most = max(most, scores[row + at].x);
  }
  var weights = 0.0;
  var sum = 0.0;
#if head_sink
  let sink = f32(head_sink[head]);
  most = max(most, sink);
  weights = exp(sink - most);
#endif
  for (var at = first; at < length; at++) {
    var value = cached_value(kv_head * CAPACITY + at, i);
    if (at == position) {
      value = latest;
    }
    let weight = exp(scores[row + at].x - most);
    weights += weight;
    sum += weight * value;
  }
  let result = sum / weights;
  var squares = 0.0;
  var shifted = 0.0;
#if head_sink
  shifted = exp(sink - most) / weights * abs(result) * abs(sink);
#endif
  for (var at = first; at < length; at++) {
    var value = cached_value(kv_head * CAPACITY + at, i);
    if (at == position) {
      value = latest;
    }
    let weight = exp(scores[row + at].x - most) / weights;
    squares += weight * weight * value * value;
    shifted += weight * abs(value - result) * scores[row + at].y;
  }
  truth[id.x] = vec2<f32>(result, sqrt(squares) + shifted + abs(result));
#endif
#if !scores
  if (id.x >= KV_HEADS * HEAD) {
    return;
  }
  let at = KEYS + id.x / HEAD * HEAD;
  let terms = rotated(at, id.x % HEAD, position, inverse_size(at));
  truth[id.x] = vec2<f32>(terms.x + terms.y, abs(terms.x) + abs(terms.y));
  let value = new_value(id.x / HEAD, id.x % HEAD);
  truth[VALUES_AT + id.x] = vec2<f32>(value, abs(value));
#endif
}
