// Makes of a tensor of a GGUF file what a buffer is to have of it: quants, scales, minima or values.
//
// capstan.device.reference.unpacked defines the result, bit for bit. A row of the tensor is blocks of bytes; element e of a
// block is d * q, or d * q + m, as `scale`, `quant` and `minimum` say. d is exact in float32, and so is m: no more than
// one rounding is left, which makes the order of operations one. `value` reads the element of a type without blocks.
// A pipeline is of one type and one thing: software adapters run every case of a switch whose value they do not know.
// Quants are read four at a time: one at a time they took a software adapter nine tenths of a load.
// Dispatch: (x, y), an invocation for each word of the result, `invocations` of them in x.
// Bindings: uniforms, source, unpacked. Limits: params.at is a multiple of 4. After half.wgsl.

override KIND: u32; // the number of the type in the file
override WHAT: u32; // QUANTS ...
override BITS: u32; // of an element of the result

struct Params {
  rows: u32, // of the tensor
  columns: u32,
  block: u32, // elements of the tensor for one of the result
  halves: u32, // see capstan.graph.Unpack
  stride: u32,
  at: u32, // byte of `unpacked` where the result begins
  words: u32, // of the result
  invocations: u32,
  shift: u32, // the q that becomes zero
  between: u32, // words of other parts' rows between two rows of the result
}

const QUANTS = 0u;
const SCALES = 1u;
const MINIMA = 2u;

const F32 = 0u;
const F16 = 1u;
const Q4_0 = 2u;
const Q4_1 = 3u;
const Q5_0 = 6u;
const Q5_1 = 7u;
const Q8_0 = 8u;
const Q2_K = 10u;
const Q3_K = 11u;
const Q4_K = 12u;
const Q5_K = 13u;
const Q6_K = 14u;
const IQ4_NL = 20u;
const IQ4_XS = 23u;
const BF16 = 30u;
const MXFP4 = 39u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> unpacked: array<u32>;

const IQ4 = array(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const FP4 = array(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

fn byte(at: u32) -> u32 {
  return extractBits(source[at / 4u], at % 4u * 8u, 8u);
}

fn signed_byte(at: u32) -> i32 {
  return extractBits(i32(byte(at)), 0u, 8u);
}

// The four bytes from any byte on.
fn four_bytes(at: u32) -> u32 {
  let shift = at % 4u * 8u;
  return (source[at / 4u] >> shift) | ((source[at / 4u + 1u] << 1u) << (31u - shift));
}

// The float16 at an even byte.
fn half_at(at: u32) -> f32 {
  return bitcast<f32>(widen(extractBits(source[at / 4u], at % 4u * 8u, 16u)));
}

// Element e of groups of `width` bytes: in a group come the lowest `bits` of all bytes, then the next ones.
fn field(at: u32, width: u32, bits: u32, e: u32) -> u32 {
  let group = width * (8u / bits);
  return extractBits(byte(at + e / group * width + e % width), e % group / width * bits, bits);
}

// The same of e to e + 3, one in a byte. e and the width are multiples of 4.
fn fields(at: u32, width: u32, bits: u32, e: u32) -> u32 {
  let group = width * (8u / bits);
  let mask = 0x01010101u * ((1u << bits) - 1u);
  return (four_bytes(at + e / group * width + e % width) >> (e % group / width * bits)) & mask;
}

// Bits e to e + 3, one in a byte. e is a multiple of 4.
fn spread_bits(at: u32, e: u32) -> u32 {
  return (extractBits(byte(at + e / 8u), e % 8u, 4u) * 0x00204081u) & 0x01010101u;
}

// The number of each byte, below 16, in a table, and 128 more.
fn looked_up(numbers: u32) -> u32 {
  var found = 0u;
  for (var shift = 0u; shift < 32u; shift += 8u) {
    let number = extractBits(numbers, shift, 8u);
    var entry: i32;
    if (KIND == MXFP4) {
      entry = FP4[number];
    } else {
      entry = IQ4[number];
    }
    found |= u32(entry + 128) << shift;
  }
  return found;
}

// Four bytes below 16 as four halves of bytes.
fn squeezed(bytes: u32) -> u32 {
  let pairs = (bytes | (bytes >> 4u)) & 0x00ff00ffu;
  return (pairs | (pairs >> 8u)) & 0xffffu;
}

// Scale or minimum j of the 8 of Q4_K and Q5_K, 6 bits each, in the 12 bytes from `at` on.
fn six_bits(at: u32, j: u32, minimum: u32) -> u32 {
  let low = byte(at + minimum * 4u + j % 4u);
  if (j < 4u) {
    return low & 63u;
  }
  return extractBits(byte(at + 4u + j), minimum * 4u, 4u) | ((low >> 2u) & 48u);
}

// Bytes and elements of a block.
fn block_size() -> vec2<u32> {
  switch (KIND) {
    case Q4_0, IQ4_NL { return vec2(18u, 32u); }
    case Q4_1 { return vec2(20u, 32u); }
    case Q5_0 { return vec2(22u, 32u); }
    case Q5_1 { return vec2(24u, 32u); }
    case Q8_0 { return vec2(34u, 32u); }
    case MXFP4 { return vec2(17u, 32u); }
    case Q2_K { return vec2(84u, 256u); }
    case Q3_K { return vec2(110u, 256u); }
    case Q4_K { return vec2(144u, 256u); }
    case Q5_K { return vec2(176u, 256u); }
    case Q6_K { return vec2(210u, 256u); }
    case IQ4_XS { return vec2(136u, 256u); }
    case F32 { return vec2(4u, 1u); }
    default { return vec2(2u, 1u); }
  }
}

// The stored numbers of elements e to e + 3, one in a byte; e is a multiple of 4. Signed numbers are 128 more.
fn stored(at: u32, e: u32) -> u32 {
  switch (KIND) {
    case Q4_0 { return fields(at + 2u, 16u, 4u, e); }
    case Q4_1 { return fields(at + 4u, 16u, 4u, e); }
    case Q5_0 { return fields(at + 6u, 16u, 4u, e) | (spread_bits(at + 2u, e) << 4u); }
    case Q5_1 { return fields(at + 8u, 16u, 4u, e) | (spread_bits(at + 4u, e) << 4u); }
    case Q8_0 { return four_bytes(at + 2u + e) ^ 0x80808080u; }
    case Q2_K { return fields(at + 16u, 32u, 2u, e); }
    case Q3_K { return fields(at + 32u, 32u, 2u, e) | (fields(at, 32u, 1u, e) << 2u); }
    case Q4_K { return fields(at + 16u, 32u, 4u, e); }
    case Q5_K { return fields(at + 48u, 32u, 4u, e) | (fields(at + 16u, 32u, 1u, e) << 4u); }
    case Q6_K { return fields(at, 64u, 4u, e) | (fields(at + 128u, 32u, 2u, e) << 4u); }
    case IQ4_NL { return looked_up(fields(at + 2u, 16u, 4u, e)); }
    case IQ4_XS { return looked_up(fields(at + 8u, 16u, 4u, e)); }
    default { return looked_up(fields(at + 1u, 16u, 4u, e)); }
  }
}

// The stored number that stands for a q of 0.
fn stored_zero() -> u32 {
  switch (KIND) {
    case Q4_0 { return 8u; }
    case Q5_0 { return 16u; }
    case Q3_K { return 4u; }
    case Q6_K { return 32u; }
    case Q4_1, Q5_1, Q2_K, Q4_K, Q5_K { return 0u; }
    default { return 128u; }
  }
}

fn quant(at: u32, e: u32) -> i32 {
  return i32(extractBits(stored(at, e & ~3u), e % 4u * 8u, 8u)) - i32(stored_zero());
}

fn scale(at: u32, e: u32) -> f32 {
  switch (KIND) {
    case Q2_K { return half_at(at + 80u) * f32(byte(at + e / 16u) & 15u); }
    case Q3_K {
      let j = e / 16u;
      return half_at(at + 108u) * f32(i32(field(at + 96u, 8u, 4u, j) | (field(at + 104u, 4u, 2u, j) << 4u)) - 32);
    }
    case Q4_K, Q5_K { return half_at(at) * f32(six_bits(at + 4u, e / 32u, 0u)); }
    case Q6_K { return half_at(at + 208u) * f32(signed_byte(at + 192u + e / 16u)); }
    case IQ4_XS {
      let j = e / 32u;
      let low = extractBits(byte(at + 4u + j / 2u), j % 2u * 4u, 4u);
      let high = extractBits(byte(at + 2u + j / 4u), j % 4u * 2u, 2u);
      return half_at(at) * f32(i32(low | (high << 4u)) - 32);
    }
    case MXFP4 {
      let exponent = byte(at);
      return bitcast<f32>(select((exponent - 1u) << 23u, (1u << 21u) << exponent, exponent < 2u));
    }
    default { return half_at(at); }
  }
}

fn minimum(at: u32, e: u32) -> f32 {
  switch (KIND) {
    case Q4_1, Q5_1 { return half_at(at + 2u); }
    case Q2_K { return -half_at(at + 82u) * f32(byte(at + e / 16u) >> 4u); }
    default { return -half_at(at + 2u) * f32(six_bits(at + 4u, e / 32u, 1u)); }
  }
}

// The bits of a value as float32.
fn value(at: u32, e: u32) -> u32 {
  switch (KIND) {
    case F32 { return source[at / 4u]; }
    case F16 { return widen(byte(at) | (byte(at + 1u) << 8u)); }
    case BF16 { return (byte(at) << 16u) | (byte(at + 1u) << 24u); }
    case Q4_1, Q5_1, Q2_K, Q4_K, Q5_K {
      return bitcast<u32>(scale(at, e) * f32(quant(at, e)) + minimum(at, e));
    }
    default { return bitcast<u32>(scale(at, e) * f32(quant(at, e))); } // a sum with 0 would make a zero positive
  }
}

// The first byte of the block that has column `column` of a row of the buffer.
fn block_at(row: u32, column: u32) -> u32 {
  var found = row;
  if (params.halves > 0u) {
    let inside = row % params.halves;
    let half = params.halves / 2u;
    found = row - inside + inside % half * 2u + inside / half;
  }
  let size = block_size();
  return (found * (params.columns / size.y) + column / size.y) * size.x;
}

// A word of quants: those of a block, as blocks are whole words.
fn quants(word: u32) -> u32 {
  let first = word * (32u / BITS);
  let column = first % params.columns;
  let at = block_at(first / params.columns, column);
  let e = column % block_size().y;
  let more = 0x01010101u * ((1u << (BITS - 1u)) - params.shift - stored_zero());
  if (BITS == 8u) {
    return stored(at, e) + more;
  }
  return squeezed(stored(at, e) + more) | (squeezed(stored(at, e + 4u) + more) << 16u);
}

// The result's element of a row of the buffer, from column `column` of the tensor on: its bits.
fn element(row: u32, column: u32) -> u32 {
  let at = block_at(row, column);
  let e = column % block_size().y;
  var bits: u32;
  switch (WHAT) {
    case SCALES { bits = bitcast<u32>(scale(at, e)); }
    case MINIMA { bits = bitcast<u32>(scale(at, e) * f32(params.shift) + minimum(at, e)); }
    default { bits = value(at, e); }
  }
  if (BITS == 16u) {
    return narrow(bits);
  }
  return bits;
}

// The place of a word of rows of that many elements, which are whole words if others are between them.
fn apart(word: u32, columns: u32) -> u32 {
  if (params.between == 0u) {
    return word;
  }
  return word + word / (columns * BITS / 32u) * params.between;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let word = id.x + id.y * params.invocations;
  if (word >= params.words) {
    return;
  }
  if (WHAT == QUANTS) {
    unpacked[params.at / 4u + apart(word, params.columns)] = quants(word);
    return;
  }
  let columns = params.columns / params.block;
  let each = 32u / BITS; // elements of a word
  var place = apart(word, columns);
  var packed = 0u;
  for (var i = 0u; i < each; i++) {
    let index = word * each + i;
    if (params.stride == 0u) {
      if (index / columns < params.rows) {
        packed |= element(index / columns, index % columns * params.block) << (i * BITS);
      }
    } else if (index / params.rows < columns) {
      let column = index / params.rows;
      let row = index % params.rows;
      packed |= element(row, column * params.block) << (i * BITS);
      if (i == 0u) {
        place = (column * params.stride + row) / each;
      }
    }
  }
  unpacked[params.at / 4u + place] = packed;
}
