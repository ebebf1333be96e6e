// Attention of one new token over a key/value cache: rotary embedding, cache write and one split of the positions.
//
// As onnxruntime's GroupQueryAttention with packed qkv: q and k are normalised with q_gamma, v with v_gamma (each head by its root mean
// square with EPSILON, times gamma, not rounded), then the first ROTARY elements of each head are rotated at position
// state[0] - 1 (an element with its neighbour if INTERLEAVED, else with the one ROTARY / 2 away), k (rounded to `element`) and v go into the caches there, and the softmax runs over the last WINDOW
// positions up to that one. If SOFTCAPPED, a score x becomes SOFTCAP * tanh(x / SOFTCAP). All sums are f32. state[0]
// counts the new token. With head_sink, each head's softmax has one more score, of no position.
// The positions in sight come in blocks of BLOCK; split s takes blocks s, s + splits, s + 2 * splits, ... One split alone writes y;
// several write partials, which attention_join makes y of; so does one without y. Workgroups beyond the last split do nothing.
// Workgroups: (splits or more, KV_HEADS * TILES, SEQUENCES); one takes TILE of the query heads of one key/value head. SEVERAL:
// there are SEQUENCES, each with a row of qkv, eight words of state, caches, partials and a row of y; else SEQUENCES is 1. ALONG: these
// are positions of one sequence instead, the first at state[0] - 1, whose caches attention_append has written. With a table, u32
// [SEQUENCES, CAPACITY], a sequence reads each position from the caches of the sequence that the table names; it writes into its own.
// PACKED: each is a position of any of the sequences that have caches, several of one too; state[0] is its length up to that position,
// state[1] the sequence. APPENDED: ALONG or PACKED.
//
// For each sequence, qkv is [HEADS * QUERY_HEAD + 2 * KV_HEADS * HEAD] (a query begins every QUERY_HEAD elements, which may be followed by others), cos and sin [*, ROTARY / 2], keys and values [KV_HEADS,
// CAPACITY, HEAD] (read, and written at the new position), y [HEADS * HEAD], gammas [HEAD], sinks [HEADS].
// SLIDING: caches, cos and sin begin at each sequence's base (held.wgsl), with CAPACITY rows for each sequence.
// If an adapter allows fewer storage buffers, the join writes y and adds the sinks. Constants: HEADS, KV_HEADS, HEAD (whole chunks of 16
// bytes), ROTARY (an even number of chunks), CAPACITY, WINDOW (CAPACITY if all positions are in sight), SCALE,
// WORKGROUP, BLOCK, ALONE and MAX_SPLITS (up to ALONE blocks are one split, more are one each up to MAX_SPLITS), TILE.
// QUANTIZED, FOUR_BITS: the rows of the caches are those of quantized_rows.wgsl. WRITTEN: qkv has the queries alone, and the
// caches have the new row already; nothing is written but the result. PREPARED: WRITTEN, and nothing is rotated; there are no cos
// and sin. WHOLE: all CAPACITY positions are in sight at any length of the sequence; there is no state.
// SHUFFLED: a team of TEAM lanes (a power of two up to LANES, at least the chunks of a head) shares a position and
// takes BATCH positions (a power of two up to TEAM) at once; BLOCK = WORKGROUP / TEAM * BATCH, WARPS = WORKGROUP /
// LANES, HALVINGS = log2(BATCH), FOLDS = log2(TEAM / BATCH), HALF_SCORES = BATCH * TILE / 2. Else everything goes
// through workgroup memory, and BLOCK = WORKGROUP. capstan.tape.ops.attention_plan chooses all of them. The code that both
// ways share is here; attention_subgroups.wgsl or attention_workgroup.wgsl follows.

#reads qkv: array<vec4<u32>>
#if !WHOLE
#reads state: array<u32>
#endif
#if !PREPARED
#reads cos_cache: array<vec4<u32>>
#reads sin_cache: array<vec4<u32>>
#endif
#if QUANTIZED
#if WRITTEN
#reads key_cache: array<u32>
#reads value_cache: array<u32>
#else
#writes key_cache: array<u32>
#writes value_cache: array<u32>
#endif
#else
#if WRITTEN
#reads key_cache: array<vec4<u32>>
#reads value_cache: array<vec4<u32>>
#else
#writes key_cache: array<vec4<u32>>
#writes value_cache: array<vec4<u32>>
#endif
#endif
// First (largest score, sum of weights, 0, 0) of each head and split, then its HEAD values, not divided by the sum.
#writes partials: array<vec4<f32>>
#writes y?: array<vec4<element>>
#reads q_gamma?: array<vec4<u32>>
#reads k_gamma?: array<vec4<u32>>
#reads v_gamma?: array<vec4<u32>>
#reads head_sink?: array<element>
#reads table?: array<u32>

// A chunk is 16 bytes of a head, PER elements; Values are its elements in f32.
#if HALF
const PER = 8u;
alias Values = mat2x4<f32>;

fn unpacked(chunk: vec4<u32>) -> Values {
  return Values(vec4<f32>(quad_of(chunk.xy)), vec4<f32>(quad_of(chunk.zw)));
}

fn packed(v: Values) -> vec4<u32> {
  return vec4<u32>(as_words(vec4<f16>(v[0])), as_words(vec4<f16>(v[1])));
}

// a * b + c * d of each element.
fn combined(a: Values, b: Values, c: Values, d: Values) -> Values {
  return Values(a[0] * b[0] + c[0] * d[0], a[1] * b[1] + c[1] * d[1]);
}

fn product(a: Values, b: Values) -> f32 {
  return dot(a[0], b[0]) + dot(a[1], b[1]);
}

// a * b of each element.
fn scaled(a: Values, b: Values) -> Values {
  return Values(a[0] * b[0], a[1] * b[1]);
}

fn same(x: f32) -> Values {
  return Values(vec4<f32>(x), vec4<f32>(x));
}

#if INTERLEAVED
// Each element in its neighbour's place.
fn swapped(v: Values) -> Values {
  return Values(v[0].yxwz, v[1].yxwz);
}

// A factor for each pair of elements of a chunk, for both of them, `sign` of it for the first.
fn doubled(halves: vec2<u32>, sign: f32) -> Values {
  let v = vec4<f32>(quad_of(halves));
  let signs = vec4<f32>(sign, 1.0, sign, 1.0);
  return Values(v.xxyy * signs, v.zzww * signs);
}
#endif
#else
const PER = 4u;
alias Values = vec4<f32>;

fn unpacked(chunk: vec4<u32>) -> Values {
  return bitcast<vec4<f32>>(chunk);
}

fn packed(v: Values) -> vec4<u32> {
  return bitcast<vec4<u32>>(v);
}

// a * b + c * d of each element.
fn combined(a: Values, b: Values, c: Values, d: Values) -> Values {
  return a * b + c * d;
}

fn product(a: Values, b: Values) -> f32 {
  return dot(a, b);
}

// a * b of each element.
fn scaled(a: Values, b: Values) -> Values {
  return a * b;
}

fn same(x: f32) -> Values {
  return Values(x);
}

#if INTERLEAVED
// Each element in its neighbour's place.
fn swapped(v: Values) -> Values {
  return v.yxwz;
}

// A factor for each pair of elements of a chunk, for both of them, `sign` of it for the first.
fn doubled(halves: vec2<u32>, sign: f32) -> Values {
  return bitcast<vec2<f32>>(halves).xxyy * vec4<f32>(sign, 1.0, sign, 1.0);
}
#endif
#endif

// The magnitude of the largest element.
fn largest_of(v: Values) -> f32 {
#if HALF
  let most = max(abs(v[0]), abs(v[1]));
#else
  let most = abs(v);
#endif
  return max(max(most.x, most.y), max(most.z, most.w));
}

const CHUNKS = HEAD / PER;
const QUERY_CHUNKS = QUERY_HEAD / PER;
#if WRITTEN
const QKV_CHUNKS = HEADS * QUERY_CHUNKS;
#else
const QKV_CHUNKS = HEADS * QUERY_CHUNKS + 2u * KV_HEADS * CHUNKS;
#endif
const HALF_CHUNKS = ROTARY / PER / 2u; // of the rotated elements
const GROUP = HEADS / KV_HEADS;
const TILES = (GROUP + TILE - 1u) / TILE;
const QUADS = HEAD / 4u;
const VALUES = SEQUENCES * HEADS * MAX_SPLITS; // where the values of the partials begin
const LOG2_E = 1.4426950408889634;
const LEAST = -1e38; // below every score
// The factor of a query, with which `capped` turns its products with the keys into scores for exp2.
#if SOFTCAPPED
const STRENGTH = SCALE / SOFTCAP;
#else
const STRENGTH = SCALE * LOG2_E;
#endif

fn capped(x: f32) -> f32 {
#if SOFTCAPPED
  // Past 10 tanh is 1 in f32, and may be computed as one infinity over another.
  return SOFTCAP * LOG2_E * tanh(clamp(x, -10.0, 10.0));
#else
  return x;
#endif
}

#if QUANTIZED
#include quantized_rows

// A chunk of a row of a cache: its words, and the scale; rows are numbered through all heads.
#if FOUR_BITS
#if HALF
fn key_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return vec4<u32>(key_cache[row * ROW + 1u + chunk], 0u, key_cache[row * ROW], 0u);
}

fn value_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return vec4<u32>(value_cache[row * ROW + 1u + chunk], 0u, value_cache[row * ROW], 0u);
}
#else
fn key_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return vec4<u32>(key_cache[row * ROW + 1u + chunk / 2u] >> (chunk % 2u * 16u), 0u, key_cache[row * ROW], 0u);
}

fn value_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return vec4<u32>(value_cache[row * ROW + 1u + chunk / 2u] >> (chunk % 2u * 16u), 0u, value_cache[row * ROW], 0u);
}
#endif
#else
const WORDS = PER / 4u; // of a chunk

fn key_chunk(row: u32, chunk: u32) -> vec4<u32> {
  let first = row * ROW + 1u + chunk * WORDS;
  return vec4<u32>(key_cache[first], key_cache[first + WORDS - 1u], key_cache[row * ROW], 0u);
}

fn value_chunk(row: u32, chunk: u32) -> vec4<u32> {
  let first = row * ROW + 1u + chunk * WORDS;
  return vec4<u32>(value_cache[first], value_cache[first + WORDS - 1u], value_cache[row * ROW], 0u);
}

fn word_of(v: vec4<f32>) -> u32 {
  let bytes = vec4<u32>(clamp(round(v), vec4<f32>(-127.0), vec4<f32>(127.0)) + 128.0) << vec4<u32>(0u, 8u, 16u, 24u);
  return bytes.x | bytes.y | bytes.z | bytes.w;
}

// Elements as such a chunk.
fn quantized(v: Values, scale: f32) -> vec4<u32> {
  let inverse = select(0.0, 1.0 / scale, scale > 0.0);
#if HALF
  return vec4<u32>(word_of(v[0] * inverse), word_of(v[1] * inverse), bitcast<u32>(scale), 0u);
#else
  return vec4<u32>(word_of(v * inverse), 0u, bitcast<u32>(scale), 0u);
#endif
}

fn put_rows(row: u32, chunk: u32, key: vec4<u32>, value: vec4<u32>) {
  let at = row * ROW;
  for (var word = 0u; word < WORDS; word++) {
    key_cache[at + 1u + chunk * WORDS + word] = key[word];
    value_cache[at + 1u + chunk * WORDS + word] = value[word];
  }
  if (chunk == 0u) {
    key_cache[at] = key.z;
    value_cache[at] = value.z;
  }
}
#endif

// The elements of such a chunk without the scale, and the scale.
fn of_cache(chunk: vec4<u32>) -> Values {
#if HALF
#if FOUR_BITS
  return Values(quad_of_row(chunk.x), quad_of_row(chunk.x >> 16u));
#else
  return Values(quad_of_row(chunk.x), quad_of_row(chunk.y));
#endif
#else
  return quad_of_row(chunk.x);
#endif
}

fn scale_of_cache(chunk: vec4<u32>) -> f32 {
  return bitcast<f32>(chunk.z);
}
#else
fn lay_out_levels(thread: u32) {}

fn key_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return key_cache[row * CHUNKS + chunk];
}

fn value_chunk(row: u32, chunk: u32) -> vec4<u32> {
  return value_cache[row * CHUNKS + chunk];
}

#if !WRITTEN
fn put_rows(row: u32, chunk: u32, key: vec4<u32>, value: vec4<u32>) {
  key_cache[row * CHUNKS + chunk] = key;
  value_cache[row * CHUNKS + chunk] = value;
}
#endif

fn of_cache(chunk: vec4<u32>) -> Values {
  return unpacked(chunk);
}

fn scale_of_cache(chunk: vec4<u32>) -> f32 {
  return 1.0;
}
#endif

// The row of the caches that has what a sequence reads at this row of its own caches; rows are numbered through all heads.
fn source_of(row: u32) -> u32 {
#if table
  let position = row % CAPACITY;
  let kv_head = row / CAPACITY % KV_HEADS;
  let sequence = row / CAPACITY / KV_HEADS;
  return (table[sequence * CAPACITY + position] * KV_HEADS + kv_head) * CAPACITY + position;
#else
  return row;
#endif
}

#if !WHOLE
#include held
#endif

// The positions that one of SEQUENCES sees, before its window.
fn seen(sequence: u32) -> u32 {
#if WHOLE
  return CAPACITY;
#else
#if ALONG
  return held(0u) + sequence;
#else
  return held(sequence);
#endif
#endif
}

// The sequence that has the caches of one of SEQUENCES.
fn caches_of(sequence: u32) -> u32 {
#if PACKED
  return state[8u * sequence + 1u];
#else
#if ALONG
  return 0u;
#else
  return sequence;
#endif
#endif
}

// The row of the rotary tables for a place in the caches. TABLES_APART: each sequence has tables of its own, as long as its caches.
fn turned(sequence: u32, place: u32) -> u32 {
#if TABLES_APART
  return sequence * CAPACITY + place;
#else
  return place;
#endif
}

// The positions before those in sight.
fn hidden(total: u32) -> u32 {
  return total - min(total, WINDOW);
}

fn count_splits(length: u32) -> u32 {
  let blocks = (length + BLOCK - 1u) / BLOCK;
  return select(min(blocks, MAX_SPLITS), 1u, blocks <= ALONE);
}

#if !PREPARED
// The two rotation factors of a chunk of a head: for its elements, and for their partners in the rotation.
fn rotation(chunk: u32, position: u32) -> array<Values, 2> {
  if (chunk >= 2u * HALF_CHUNKS) {
    return array<Values, 2>(same(1.0), same(0.0));
  }
#if INTERLEAVED
  let at = position * HALF_CHUNKS + chunk / 2u;
  let upper = vec2<bool>(chunk % 2u == 1u);
  return array<Values, 2>(
    doubled(select(cos_cache[at].xy, cos_cache[at].zw, upper), 1.0),
    doubled(select(sin_cache[at].xy, sin_cache[at].zw, upper), -1.0));
#else
  let at = position * HALF_CHUNKS + chunk % HALF_CHUNKS;
  let sine = unpacked(sin_cache[at]);
  return array<Values, 2>(unpacked(cos_cache[at]), sine * select(1.0, -1.0, chunk < HALF_CHUNKS));
#endif
}

// The chunk whose elements are the partners of a chunk's elements in the rotation.
fn partner(chunk: u32) -> u32 {
#if INTERLEAVED
  return chunk;
#else
  return select(select(chunk - HALF_CHUNKS, chunk + HALF_CHUNKS, chunk < HALF_CHUNKS), chunk, chunk >= 2u * HALF_CHUNKS);
#endif
}

// A partner chunk's elements, each in the place of the element that it rotates.
fn opposite(elements: vec4<u32>) -> Values {
#if INTERLEAVED
  return swapped(unpacked(elements));
#else
  return unpacked(elements);
#endif
}

// The rotation factors of a chunk of q or k: those of its position, times the gammas of the chunk and of its partner.
fn q_rotation(chunk: u32, turn: array<Values, 2>) -> array<Values, 2> {
#if q_gamma
  return array<Values, 2>(
    scaled(turn[0], unpacked(q_gamma[chunk])), scaled(turn[1], opposite(q_gamma[partner(chunk)])));
#else
  return turn;
#endif
}

#if !WRITTEN
fn k_rotation(chunk: u32, turn: array<Values, 2>) -> array<Values, 2> {
#if q_gamma
  return array<Values, 2>(
    scaled(turn[0], unpacked(k_gamma[chunk])), scaled(turn[1], opposite(k_gamma[partner(chunk)])));
#else
  return turn;
#endif
}
#endif
#endif

// A quad (four elements) of a result, into y if `sum` is all of the softmax's, else into the partials; `head` counts
// those of the sequences before.
fn put(head: u32, split: u32, splits: u32, quad: u32, values: vec4<f32>, most: f32, weights: f32) {
  var value = values;
  var largest = most;
  var sum = weights;
#if head_sink
  if (split == 0u) {
    let sink = LOG2_E * f32(head_sink[head % HEADS]);
    largest = max(most, sink);
    let shrink = exp2(most - largest);
    sum = weights * shrink + exp2(sink - largest);
    value = values * shrink;
  }
#endif
#if y
  if (splits == 1u) {
    y[head * QUADS + quad] = vec4<element>(value / sum);
    return;
  }
#endif
  let record = head * MAX_SPLITS + split;
  if (quad == 0u) {
    partials[record] = vec4<f32>(largest, sum, 0.0, 0.0);
  }
  partials[VALUES + record * QUADS + quad] = value;
}
