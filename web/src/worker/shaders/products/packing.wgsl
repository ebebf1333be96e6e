// Weights of a product as its kernel binds them, and what lies where in int4 and int8 of ONNX Runtime's MatMulNBits.
//
// A kernel loads a Word of weights at once. Those of the other half of a gated layer are called _up. Without scales W
// is dense. Else integer i of a row, the lowest bits first, is q; W = (q - 8) * scale of its block (BYTES: q - 128), with
// zeros q less the block's zero point. Zero points are packed as q is, each row's from a whole byte on. A row is whole
// blocks of BLOCK elements; what the last one has past K is not read. With minima each weight of a block has the block's
// minimum added: those of block b are minima[b * N] and the next N - 1.

#reads weights?: array<Word>
#reads scales?: array<element>
#reads zeros?: array<u32>
#reads minima?: array<element>
#reads weights_up?: array<Word>
#reads scales_up?: array<element>
#reads zeros_up?: array<u32>
#reads minima_up?: array<element>
#if scales
#include packed_number

const BLOCKS: u32 = (K + BLOCK - 1u) / BLOCK; // of a row
const ZERO_BLOCKS: u32 = (BLOCKS * BITS + 7u) / 8u * (8u / BITS);

// The index of a block's zero point, in zero points.
fn zero_of(row: u32, block: u32) -> u32 {
  return row * ZERO_BLOCKS + block;
}
#endif
