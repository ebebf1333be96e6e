// Writes rows of consecutive integers.
//
// Element i is row_words(i / count) + i % count, as an int64, or its low word as an int32. params.more is
// (bytes of an element: 4 or 8, count, 0, 0).
// Dispatch: (x, y), an invocation for each word that the destination touches. Bindings: spans.wgsl's.
// Limits: 28 rows. After spans.wgsl.

// Word `index` of the elements.
fn word_of(index: u32) -> u32 {
  let words = params.more.x / 4u;
  let element = index / words;
  let start = row_words(element / params.more.y);
  let low = start.x + element % params.more.y;
  if (index % words == 0u) {
    return low;
  }
  return start.y + select(0u, 1u, low < start.x);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = params.destination;
  let word = first / 4u + id.x + id.y * params.stride;
  let bits = bits_inside(word, first, first + params.bytes);
  if (bits == 0u) {
    return;
  }
  let index = id.x + id.y * params.stride;
  let shift = (first & 3u) * 8u;
  var value = 0u;
  if (index * 4u < params.bytes) {
    value = word_of(index) << shift;
  }
  if (shift != 0u && index != 0u) {
    value |= word_of(index - 1u) >> (32u - shift);
  }
  store(word, value, bits);
}
