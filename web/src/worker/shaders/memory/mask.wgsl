// Sets elements of rows of an attention mask to one or zero.
//
// Row z of the dispatch is row_words(z): the offset, from params.destination, of its first element that changes, and
// twice the number of them, plus 1 if they become one. Elements have params.more.x bytes, 4 or 8. No two rows of a dispatch share a word.
// Dispatch: (x, y, rows), an invocation for each word that the longest row touches. Bindings: spans.wgsl's.
// Limits: 28 rows. After spans.wgsl.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = row_words(id.z);
  let first = params.destination + row.x;
  let size = params.more.x;
  let word = first / 4u + id.x + id.y * params.stride;
  let bits = bits_inside(word, first, first + (row.y >> 1u) * size);
  if (bits == 0u) {
    return;
  }
  var value = 0u;
  if ((row.y & 1u) == 1u) {
    // The byte of the word at which an element begins is the one that is 1.
    let into = (word * 4u + 8u - first) % size; // bytes of an element that lie before the word
    let begins = (size - into) % size;
    if (begins < 4u) {
      value = 1u << (begins * 8u);
    }
  }
  store(word, value, bits);
}
