// Rows of a table by their numbers: y[r] = table[ids[r]], as words.
// Bindings: 0 ids, int64 as two words each; 1 table [*, WORDS]; 2 y [rows, WORDS]. Dispatch: (ceil(WORDS / 64), rows).

@group(0) @binding(next) var<storage, read> ids: array<u32>;
@group(0) @binding(next) var<storage, read> table: array<u32>;
@group(0) @binding(next) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < WORDS) {
    y[id.y * WORDS + id.x] = table[ids[2u * id.y] * WORDS + id.x];
  }
}
