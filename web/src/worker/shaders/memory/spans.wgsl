// Shared by the kernels on spans: parameters, and writing bytes at any offset.
//
// An invocation owns one word of the destination (spans.ts counts them from the first that the span touches) and is the
// only one of its dispatch that writes it: bytes outside of the span are merged in unchanged. Bindings: 0 destination,
// 1 params (one slot of a buffer, by dynamic offset). Offsets are bytes in what is bound. Limits: what is bound has at
// most 2^30 bytes.

struct Params {
  source: u32,              // offset
  destination: u32,         // offset
  bytes: u32,               // of the destination
  stride: u32,              // invocations in one row of workgroups: a dispatch has rows of them
  more: vec4<u32>,          // the kernel's own
  rows: array<vec4<u32>, 14>, // two rows of a batch in each: see mask.wgsl and positions.wgsl
}

@group(0) @binding(0) var<storage, read_write> destination: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// The bits of `word` that belong to bytes from `first` to before `end`; 0 if there are none.
fn bits_inside(word: u32, first: u32, end: u32) -> u32 {
  let at = word * 4u;
  if (end <= at || first >= at + 4u) {
    return 0u;
  }
  var bits = 0xffffffffu;
  if (first > at) {
    bits <<= (first - at) * 8u;
  }
  if (end < at + 4u) {
    bits &= 0xffffffffu >> ((at + 4u - end) * 8u);
  }
  return bits;
}

fn store(word: u32, value: u32, bits: u32) {
  if (bits == 0xffffffffu) {
    destination[word] = value;
  } else if (bits != 0u) {
    destination[word] = (destination[word] & ~bits) | (value & bits);
  }
}

// Row `index` of the batch: two words.
fn row_words(index: u32) -> vec2<u32> {
  let pair = params.rows[index / 2u];
  return select(pair.xy, pair.zw, (index & 1u) == 1u);
}
