// Turns a matrix that a data file has as [rows, columns] into [columns, rows], each row of it from a whole byte on.
//
// Elements have 4, 8, 16 or 32 bits, those of 4 with the even ones in the low halves of bytes. `flip` is xored to each.
// Dispatch: (x, y), an invocation for each word of the result, `stride` invocations in x.
// Bindings: uniforms, source, turned. Limits: at is a multiple of 4; rows of 16 or 32 bits are whole elements anyway.

struct Params {
  rows: u32,
  columns: u32,
  bits: u32,
  flip: u32,
  row_bytes: u32, // of the result
  at: u32, // byte of `turned` where the result begins
  words: u32,
  stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> turned: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let thread = id.x + id.y * params.stride;
  if (thread >= params.words) {
    return;
  }
  var word = thread;
  if (params.row_bytes % 4u == 0u) {
    // Neighbours take neighbouring columns, and so read neighbouring elements.
    word = thread % params.columns * (params.row_bytes / 4u) + thread / params.columns;
  }
  let bits = params.bits;
  var value = 0u;
  for (var bit = 0u; bit < 32u; bit += bits) {
    let byte = word * 4u + bit / 8u;
    let column = byte / params.row_bytes;
    let row = (byte % params.row_bytes * 8u + bit % 8u) / bits;
    if (column < params.columns && row < params.rows) {
      let index = row * params.columns + column;
      let found = extractBits(source[index / (32u / bits)], index % (32u / bits) * bits, bits);
      value |= (found ^ params.flip) << bit;
    }
  }
  turned[params.at / 4u + word] = value;
}
