// Makes the attention result of each head out of the partials of several splits (attention.wgsl has their layout).
//
// Workgroups: (HEADS, 1, SEQUENCES); with one split there is nothing to join, and nothing is written if ALONE_WRITES, where attention.wgsl
// has written y. With head_sink, each head's softmax has one more score. A thread takes one quad (four
// elements) of every ROWS-th split. Its loads wait for nothing; what lies past the last split is not used.
// WHOLE: WINDOW positions are in sight at any length. TURNED: results are turned by a Hadamard matrix, for the values are (attention_turn.wgsl).
// y is [HEADS * HEAD], head_sink [HEADS]. Constants: as attention.wgsl's; WORKGROUP = ROWS * HEAD / 4, at least MAX_SPLITS; SHARE = MAX_SPLITS / ROWS, rounded up.

#reads partials: array<vec4<f32>>
#if !WHOLE
#reads state: array<u32>
#endif
#writes y: array<vec4<element>>
#reads head_sink?: array<element>

const QUADS = HEAD / 4u;
const VALUES = SEQUENCES * HEADS * MAX_SPLITS;
const STATE_STRIDE = 8u;
const LEAST = -1e38;

#if TURNED
#include hadamard
#endif

var<workgroup> largest: array<f32, MAX_SPLITS>;
var<workgroup> sums: array<f32, MAX_SPLITS>;
var<workgroup> row_sums: array<f32, ROWS>;
var<workgroup> row_values: array<vec4<f32>, WORKGROUP>;

fn count_splits(length: u32) -> u32 {
  let blocks = (length + BLOCK - 1u) / BLOCK;
  return select(min(blocks, MAX_SPLITS), 1u, blocks <= ALONE);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = workgroup.z * HEADS + workgroup.x; // of all sequences
  let record = head * MAX_SPLITS;
  let quad = thread % QUADS;
  let row = thread / QUADS;
  let summary = partials[record + min(thread, MAX_SPLITS - 1u)];
  var values = array<vec4<f32>, SHARE>();
#repeat i SHARE
  values[i] = partials[VALUES + (record + min(i * ROWS + row, MAX_SPLITS - 1u)) * QUADS + quad];
#end
#if WHOLE
  const total = WINDOW;
#else
#if ALONG
  let total = state[0] + workgroup.z;
#else
  let total = state[workgroup.z * STATE_STRIDE];
#endif
#endif
  let splits = count_splits(min(total, WINDOW));
#if ALONE_WRITES
  if (splits == 1u) {
    return;
  }
#endif
  if (thread < MAX_SPLITS) {
    largest[thread] = select(LEAST, summary.x, thread < splits);
    sums[thread] = summary.y;
  }
  workgroupBarrier();
#if head_sink
  let sink = 1.4426950408889634 * f32(head_sink[workgroup.x]);
  var most = sink;
#else
  var most = LEAST;
#endif
#repeat s MAX_SPLITS
  most = max(most, largest[s]);
#end
  var sum = 0.0;
  var value = vec4<f32>();
#repeat i SHARE
  let split = i * ROWS + row;
  if (split < splits) {
    let weight = exp2(largest[split] - most);
    sum += weight * sums[split];
    value += weight * values[i];
  }
#end
  if (quad == 0u) {
    row_sums[row] = sum;
  }
  row_values[thread] = value;
  workgroupBarrier();
  if (row == 0u) {
#if head_sink
    sum = exp2(sink - most);
#else
    sum = 0.0;
#endif
    value = vec4<f32>();
#repeat r ROWS
    sum += row_sums[r];
    value += row_values[r * QUADS + quad];
#end
#if TURNED
    let turned = value * (TURN / sum);
#repeat i 4
    turning[4u * quad + i] = turned[i];
#end
#else
    y[head * QUADS + quad] = vec4<element>(value / sum);
#endif
  }
#if TURNED
  workgroupBarrier();
  turn_head(thread);
  if (row == 0u) {
    let at = 4u * quad;
    y[head * QUADS + quad] = vec4<element>(vec4<f32>(turning[at], turning[at + 1u], turning[at + 2u], turning[at + 3u]));
  }
#endif
}
