// Rows of a table by their numbers: y[r] = table[ids[r]], as words; or of a QUANTIZED one, taken apart.
// Bindings: ids, int64 as two words each; table [*, WORDS]; y [rows, WORDS]. Dispatch: (ceil(WORDS / 64), rows).
// QUANTIZED: y[r][i] = (q - 8) * scale, q the 4 bits of table [*, WORDS / 8], the lowest first, and scale of scales
// [*, SCALES], one for BLOCK elements; then y [rows, WORDS] are elements.

@group(0) @binding(next) var<storage, read> ids: array<u32>;
@group(0) @binding(next) var<storage, read> table: array<u32>;
#if QUANTIZED
@group(0) @binding(next) var<storage, read> scales: array<element>;
@group(0) @binding(next) var<storage, read_write> y: array<element>;
#else
@group(0) @binding(next) var<storage, read_write> y: array<u32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < WORDS) {
    let row = ids[2u * id.y];
#if QUANTIZED
    let at = row * WORDS + id.x;
    let q = (table[at / 8u] >> (4u * (at % 8u))) & 15u;
    y[id.y * WORDS + id.x] = (element(q) - element(8)) * scales[row * SCALES + id.x / BLOCK];
#else
    y[id.y * WORDS + id.x] = table[row * WORDS + id.x];
#endif
  }
}
