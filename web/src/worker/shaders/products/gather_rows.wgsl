// Rows of a table by their numbers: y[r] = table[ids[r]], as words; with NUMBERS as numbers, of which more can be made.
// Bindings: ids, int64 as two words each; table [*, WORDS]; y [rows, WORDS]. Dispatch: (ceil(WORDS / 64), rows).
// NUMBERS: WORDS are numbers, multiplied by factor[0], or divided by it if DIVIDED, and written as f32 if WIDE. With scales a number
// is (q - 8) * scale, q the 4 bits of table [*, WORDS / 8], the lowest first, and scale of scales [*, SCALES], one for BLOCK
// numbers; SIGNED: these 4 bits are signed, and stand for themselves. Each step is rounded to `element`.
// PARTED: the table is rows FIRST to FIRST + SIZE of a larger one, and y keeps the rows of other ids.

#reads ids: array<u32>
#reads table: array<Kept>
#reads scales?: array<element>
#reads factor?: array<element>
#writes y: array<Made>

#if scales
#include packed_number

alias Kept = u32;
#else
#if NUMBERS
alias Kept = element;
#else
alias Kept = u32;
#endif
#endif

#if WIDE
alias Made = f32;
#else
#if NUMBERS
alias Made = element;
#else
alias Made = u32;
#endif
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
    let at = row * WORDS + id.x;
#if scales
#if SIGNED
    let q = number_in(table[at / 8u], at) ^ 8u;
#else
    let q = number_in(table[at / 8u], at);
#endif
    let x = (element(q) - element(8)) * scales[row * SCALES + id.x / BLOCK];
#else
    let x = table[at];
#endif
#if factor
#if DIVIDED
    y[id.y * WORDS + id.x] = Made(x / factor[0]);
#else
    y[id.y * WORDS + id.x] = Made(x * factor[0]);
#endif
#else
    y[id.y * WORDS + id.x] = Made(x);
#endif
  }
}
