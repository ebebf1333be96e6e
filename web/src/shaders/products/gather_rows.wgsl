// Rows of a table by their numbers: y[r] = table[ids[r]], as words; or of one with scales, taken apart.
// Bindings: ids, int64 as two words each; table [*, WORDS]; y [rows, WORDS]. Dispatch: (ceil(WORDS / 64), rows).
// With scales: y[r][i] = (q - 8) * scale, q the 4 bits of table [*, WORDS / 8], the lowest first, and scale of scales
// [*, SCALES], one for BLOCK elements; then y [rows, WORDS] are elements.
// PARTED: the table is rows FIRST to FIRST + SIZE of a larger one, and y keeps the rows of other ids.

#reads ids: array<u32>
#reads table: array<u32>
#reads scales?: array<element>
#writes y: array<Made>

#if scales
#include packed_number

alias Made = element;
#else
alias Made = u32;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
#if PARTED
  let row = ids[2u * id.y] - FIRST;
  let has = row < SIZE;
#else
  let row = ids[2u * id.y];
  let has = true;
#endif
  if (id.x < WORDS && has) {
#if scales
    let at = row * WORDS + id.x;
    let q = number_in(table[at / 8u], at);
    y[id.y * WORDS + id.x] = (element(q) - element(8)) * scales[row * SCALES + id.x / BLOCK];
#else
    y[id.y * WORDS + id.x] = table[row * WORDS + id.x];
#endif
  }
}
