// Before attention over caches of 4 bits: the new keys and values, normalised and rotated as attention.wgsl does it, turned by a
// Hadamard matrix, quantized and put into the caches (quantized_rows.wgsl); the queries, normalised, rotated and turned, for
// attention.wgsl with PREPARED. attention_join.wgsl turns the results back.
//
// Workgroups: (heads, SEQUENCES); the heads of qkv from FIRST on, of which those that have a binding for what they make are made.
// Bindings, constants, ALONG, SLIDING and TABLES_APART: as in attention_shared.wgsl; queries [SEQUENCES, HEADS * HEAD]. NORMED:
// there are gammas of queries and keys. HEAD is a power of two, WORKGROUP too.

#reads qkv: array<element>
#reads state: array<u32>
#reads cos_cache: array<element>
#reads sin_cache: array<element>
#reads q_gamma?: array<element>
#reads k_gamma?: array<element>
#reads v_gamma?: array<element>
#writes key_cache?: array<u32>
#writes value_cache?: array<u32>
#writes queries?: array<element>

const KEYS = HEADS + KV_HEADS; // where the values begin
const HALF_ROTARY = ROTARY / 2u;
const ROW = 1u + HEAD / 8u; // words

#include held
#include hadamard
#include quantized_levels

var<workgroup> parts: array<f32, WORKGROUP>;

// The sum over all threads, each of which calls it.
fn summed(thread: u32, part: f32) -> f32 {
  parts[thread] = part;
  workgroupBarrier();
  for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
    if (thread < half) {
      parts[thread] += parts[thread + half];
    }
    workgroupBarrier();
  }
  let sum = parts[0];
  workgroupBarrier();
  return sum;
}

// Element i of a head times the gamma of its norm.
fn scaled(head: u32, at: u32, i: u32) -> f32 {
  let x = f32(qkv[at + i]);
#if q_gamma
  if (head < HEADS) {
    return x * f32(q_gamma[i]);
  }
#endif
#if k_gamma
  if (head >= HEADS && head < KEYS) {
    return x * f32(k_gamma[i]);
  }
#endif
#if v_gamma
  if (head >= KEYS) {
    return x * f32(v_gamma[i]);
  }
#endif
  return x;
}

// The same, rotated to row `angles` of the rotary tables.
fn rotated(head: u32, at: u32, i: u32, angles: u32) -> f32 {
  let x = scaled(head, at, i);
  if (head >= KEYS || i >= ROTARY) {
    return x;
  }
#if INTERLEAVED
  let angle = angles * HALF_ROTARY + i / 2u;
  let other = scaled(head, at, i ^ 1u);
  let first = i % 2u == 0u;
#else
  let angle = angles * HALF_ROTARY + i % HALF_ROTARY;
  let other = scaled(head, at, (i + HALF_ROTARY) % ROTARY);
  let first = i < HALF_ROTARY;
#endif
  return x * f32(cos_cache[angle]) + select(other, -other, first) * f32(sin_cache[angle]);
}

// The number of the level next to a part of a row's length.
fn level_of(part: f32) -> u32 {
  var bounds = BOUNDS;
  var level = 0u;
  for (var i = 0u; i < 15u; i++) {
    level += select(0u, 1u, part > bounds[i]);
  }
  return level;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = FIRST + workgroup.x;
  let sequence = workgroup.y;
  let at = (sequence * (KEYS + KV_HEADS) + head) * HEAD;
#if ALONG
  let position = held(0u) - 1u + sequence;
  const caches = 0u;
#else
  let position = held(sequence) - 1u;
  let caches = sequence;
#endif
#if TABLES_APART
  let angles = sequence * CAPACITY + position;
#else
  let angles = position;
#endif
  var inverse = 1.0;
#if NORMED
  var squares = 0.0;
  for (var i = thread; i < HEAD; i += WORKGROUP) {
    let x = f32(qkv[at + i]);
    squares += x * x;
  }
  inverse = inverseSqrt(summed(thread, squares) / f32(HEAD) + EPSILON);
#if !v_gamma
  if (head >= KEYS) {
    inverse = 1.0;
  }
#endif
#endif
  for (var i = thread; i < HEAD; i += WORKGROUP) {
    turning[i] = rotated(head, at, i, angles) * inverse;
  }
  workgroupBarrier();
  turn_head(thread);
#if queries
  if (head < HEADS) {
    for (var i = thread; i < HEAD; i += WORKGROUP) {
      queries[(sequence * HEADS + head) * HEAD + i] = element(turning[i] * TURN);
    }
  }
#endif
#if key_cache
  var length = 0.0;
  for (var i = thread; i < HEAD; i += WORKGROUP) {
    let x = turning[i] * TURN;
    length += x * x;
  }
  let scale = sqrt(summed(thread, length));
  let factor = select(0.0, TURN / scale, scale > 0.0);
  let kv_head = (head - HEADS) % KV_HEADS;
  let row = ((caches * KV_HEADS + kv_head) * CAPACITY + position) * ROW;
  for (var word = thread; word < ROW; word += WORKGROUP) {
    var bits = bitcast<u32>(scale);
    if (word > 0u) {
      bits = 0u;
      for (var i = 0u; i < 8u; i++) {
        bits |= level_of(turning[(word - 1u) * 8u + i] * factor) << (4u * i);
      }
    }
    if (head >= KEYS) {
      value_cache[row + word] = bits;
    } else if (head >= HEADS) {
      key_cache[row + word] = bits;
    }
  }
#endif
}
