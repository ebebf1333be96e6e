// Converts elements among float32, float16, int32, int64 and uint32, at any byte offsets.
//
// py_src/capstan/device/casts.py defines the result, bit for bit. All of it is integer arithmetic on the elements' bits:
// WGSL's float operations may flush subnormals, may round either way and may assume that there is no NaN; and float16
// is then there without shader-f16. An element is a vec2<u32>, the low word first; what it does not use is 0.
// params.more is (source type, destination type, bytes of a source element, bytes of a destination element).
// Dispatch: (x, y), an invocation for each word that the destination touches. Bindings: spans.wgsl's; 2 source.
// After spans.wgsl and half.wgsl.

const FLOAT32 = 0u;
const FLOAT16 = 1u;
const INT32 = 2u;
const INT64 = 3u;
const UINT32 = 4u;

@group(0) @binding(2) var<storage, read> source: array<u32>;

fn negated(value: vec2<u32>) -> vec2<u32> {
  let low = ~value.x + 1u;
  return vec2<u32>(low, ~value.y + select(0u, 1u, low == 0u));
}

// The float32 nearest to an int64, ties to even.
fn to_float(value: vec2<u32>) -> u32 {
  let sign = value.y & 0x80000000u;
  var n = value;
  if (sign != 0u) {
    n = negated(value);
  }
  if (n.x == 0u && n.y == 0u) {
    return 0u;
  }
  // Shift the highest bit to bit 63.
  var zeros = countLeadingZeros(n.y);
  if (n.y == 0u) {
    zeros = 32u + countLeadingZeros(n.x);
    n = vec2<u32>(0u, n.x);
  }
  let shift = zeros & 31u;
  if (shift != 0u) {
    n = vec2<u32>(n.x << shift, (n.y << shift) | (n.x >> (32u - shift)));
  }
  let fraction = n.y >> 8u;
  let rest = n.y & 0xffu;
  let up = rest > 0x80u || (rest == 0x80u && (n.x != 0u || (fraction & 1u) == 1u));
  return sign | (((190u - zeros) << 23u) + (fraction & 0x7fffffu) + select(0u, 1u, up));
}

// A float32 towards zero, as an integer of a type; out of range the nearest limit. NaN gives 0.
fn to_integer(bits: u32, dtype: u32) -> vec2<u32> {
  let negative = (bits & 0x80000000u) != 0u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u || magnitude < 0x3f800000u || (negative && dtype == UINT32)) {
    return vec2<u32>(0u, 0u);
  }
  let exponent = (magnitude >> 23u) - 127u;
  if (dtype == UINT32 && exponent >= 32u) {
    return vec2<u32>(0xffffffffu, 0u);
  }
  if (dtype == INT32 && exponent >= 31u) {
    return vec2<u32>(select(0x7fffffffu, 0x80000000u, negative), 0u);
  }
  if (exponent >= 63u) {
    return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
  }
  let fraction = (magnitude & 0x7fffffu) | 0x800000u;
  var value = vec2<u32>(0u, 0u);
  if (exponent <= 23u) {
    value.x = fraction >> (23u - exponent);
  } else if (exponent < 32u) {
    value.x = fraction << (exponent - 23u);
  } else if (exponent < 55u) {
    value = vec2<u32>(fraction << (exponent - 23u), fraction >> (55u - exponent));
  } else {
    value.y = fraction << (exponent - 55u);
  }
  if (negative) {
    return negated(value);
  }
  return value;
}

fn convert(raw: vec2<u32>) -> vec2<u32> {
  let source_type = params.more.x;
  let destination_type = params.more.y;
  if (source_type == destination_type) {
    return raw;
  }
  if (source_type == FLOAT32 || source_type == FLOAT16) {
    var bits = raw.x;
    if (source_type == FLOAT16) {
      bits = widen(raw.x);
    }
    if (destination_type == FLOAT32) {
      return vec2<u32>(bits, 0u);
    }
    if (destination_type == FLOAT16) {
      return vec2<u32>(narrow(bits), 0u);
    }
    return to_integer(bits, destination_type);
  }
  var value = raw;
  if (source_type == INT32 && (raw.x & 0x80000000u) != 0u) {
    value.y = 0xffffffffu;
  }
  if (destination_type == FLOAT32) {
    return vec2<u32>(to_float(value), 0u);
  }
  if (destination_type == FLOAT16) {
    return vec2<u32>(narrow(to_float(value)), 0u);
  }
  return value;
}

// Four bytes of the source. The element uses no bytes past its end.
fn load(at: u32) -> u32 {
  let shift = (at & 3u) * 8u;
  let low = source[at / 4u] >> shift;
  if (shift == 0u) {
    return low;
  }
  return low | (source[at / 4u + 1u] << (32u - shift));
}

fn load_element(index: u32) -> vec2<u32> {
  let size = params.more.z;
  let at = params.source + index * size;
  if (size == 8u) {
    return vec2<u32>(load(at), load(at + 4u));
  }
  return vec2<u32>(load(at) & select(0xffffffffu, 0xffffu, size == 2u), 0u);
}

// Bits 8 * bytes and up of a 64-bit value; none from 8 bytes on.
fn drop_bytes(value: vec2<u32>, bytes: u32) -> u32 {
  if (bytes >= 4u) {
    return value.y >> ((bytes - 4u) * 8u);
  }
  if (bytes == 0u) {
    return value.x;
  }
  return (value.x >> (bytes * 8u)) | (value.y << (32u - bytes * 8u));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = params.destination;
  let word = first / 4u + id.x + id.y * params.stride;
  let bits = bits_inside(word, first, first + params.bytes);
  if (bits == 0u) {
    return;
  }
  let size = params.more.w;
  let end = min(word * 4u + 4u, first + params.bytes);
  var at = max(word * 4u, first);
  var value = 0u;
  for (var part = 0u; part < 3u && at < end; part++) { // a word holds parts of three elements at most
    let index = (at - first) / size;
    let into = (at - first) % size; // bytes of the element that lie before this one
    var element = convert(load_element(index));
    if (size != 8u) {
      element.y = 0u;
    }
    value |= drop_bytes(element, into) << ((at & 3u) * 8u);
    at += size - into;
  }
  store(word, value, bits);
}
