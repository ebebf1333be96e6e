// Copies params.bytes bytes from any offset of one buffer to any offset of another.
//
// Dispatch: (x, y), an invocation for each word that the destination touches. Bindings: spans.wgsl's; 2 source.
// After spans.wgsl.

@group(0) @binding(2) var<storage, read> source: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = params.destination;
  let word = first / 4u + id.x + id.y * params.stride;
  let bits = bits_inside(word, first, first + params.bytes);
  if (bits == 0u) {
    return;
  }
  // The bytes for this word begin at this one of the source; before its start where the word begins before the span.
  let begin = i32(word * 4u) - i32(first) + i32(params.source);
  let shift = (u32(begin) & 3u) * 8u;
  let at = begin >> 2u;
  var value = source[max(at, 0)] >> shift;
  if (shift != 0u) {
    // The last of these words may lie past the end of the source; its bits are then outside of the span.
    value = select(value, 0u, at < 0) | (source[at + 1] << (32u - shift));
  }
  store(word, value, bits);
}
