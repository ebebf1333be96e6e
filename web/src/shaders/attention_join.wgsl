// Makes the attention result of each head out of the partials of several splits (attention.wgsl has their layout).
//
// Workgroups: (HEADS); with one split there is nothing to join, and nothing is written. A thread takes one quad (four
// elements) of every ROWS-th split. Its loads wait for nothing; what lies past the last split is not used.
// Bindings: 0 partials, 1 state, 2 y [HEADS * HEAD]. Constants: as attention.wgsl's; WORKGROUP is a multiple of HEAD / 4
// and at least MAX_SPLITS.

@group(0) @binding(0) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> state: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<element>>;

const QUADS = HEAD / 4u;
const ROWS = WORKGROUP / QUADS;
const SHARE = (MAX_SPLITS + ROWS - 1u) / ROWS;
const VALUES = HEADS * MAX_SPLITS;
const LEAST = -1e38;

var<workgroup> largest: array<f32, MAX_SPLITS>;
var<workgroup> sums: array<f32, MAX_SPLITS>;
var<workgroup> row_values: array<vec4<f32>, WORKGROUP>;

fn count_splits(length: u32) -> u32 {
  let blocks = (length + BLOCK - 1u) / BLOCK;
  return select(min(blocks, MAX_SPLITS), 1u, blocks <= ALONE);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let record = workgroup.x * MAX_SPLITS;
  let quad = thread % QUADS;
  let row = thread / QUADS;
  let summary = partials[record + min(thread, MAX_SPLITS - 1u)];
  var values: array<vec4<f32>, SHARE>;
  for (var i = 0u; i < SHARE; i++) {
    values[i] = partials[VALUES + (record + min(i * ROWS + row, MAX_SPLITS - 1u)) * QUADS + quad];
  }
  let splits = count_splits(state[0]);
  if (splits == 1u) {
    return;
  }
  if (thread < MAX_SPLITS) {
    largest[thread] = summary.x;
    sums[thread] = summary.y;
  }
  workgroupBarrier();
  var most = LEAST;
  for (var s = 0u; s < splits; s++) {
    most = max(most, largest[s]);
  }
  var sum = 0.0;
  for (var s = 0u; s < splits; s++) {
    sum += exp2(largest[s] - most) * sums[s];
  }
  var value = vec4<f32>();
  for (var i = 0u; i < SHARE; i++) {
    let split = i * ROWS + row;
    if (split < splits) {
      value += exp2(largest[split] - most) * values[i];
    }
  }
  row_values[thread] = value;
  workgroupBarrier();
  if (row == 0u) {
    for (var r = 1u; r < ROWS; r++) {
      value += row_values[r * QUADS + quad];
    }
    y[workgroup.x * QUADS + quad] = vec4<element>(value / sum);
  }
}
