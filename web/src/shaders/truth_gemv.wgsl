// What a GEMV should give, in float32, and how large its rounding errors may become: one thread an output, plain loops.
//
// y[n] = sum over k of W[n][k] * x[k], with the norm, the gate and the residual of matvec_q4.wgsl and matvec_dense.wgsl.
// W: int4 of MatMulNBits (BYTES: int8) with scales and, if ZEROS, zero points, packed as matvec_q4.wgsl tells; DENSE: [K, N]
// of `element`.
// truth[n] = (y[n], spread): `spread` is the 2-norm of the terms of the sum, brought through what follows it, plus the
// magnitude of each value that is rounded on the way. A rounding error is at most `spread` times the unit roundoff times a
// small factor (docs/design.md, "Checking"). Sums are taken in runs of RUN terms, so that their own error is far below.
// GIVEN: y, rounded to `element`, is written as well, where no recorded buffer has it.
// GATED: SiLU of that, or GELU of it if GELU, times `up`, the truth of the other half.
// Bindings, those whose condition holds: x, weights, scales, zeros, gamma, residual, up, truth, y.
// Constants: N, K, BLOCK (elements that share a scale; any divisor of K where DENSE), EPSILON if NORM. Dispatch: N / 64.

const BLOCKS = (K + BLOCK - 1u) / BLOCK;
#if BYTES
const BITS = 8u;
#else
const BITS = 4u;
#endif
const ROW_BITS = BLOCKS * BLOCK * BITS;
const ZERO_ROW_BITS = (BLOCKS * BITS + 7u) / 8u * 8u;

@group(0) @binding(next) var<storage, read> x: array<element>;
#if DENSE
@group(0) @binding(next) var<storage, read> weights: array<element>;
#else
@group(0) @binding(next) var<storage, read> weights: array<u32>;
@group(0) @binding(next) var<storage, read> scales: array<element>;
#if ZEROS
@group(0) @binding(next) var<storage, read> zeros: array<u32>;
#endif
#endif
#if NORM
@group(0) @binding(next) var<storage, read> gamma: array<element>;
#endif
#if RESIDUAL
@group(0) @binding(next) var<storage, read> residual: array<element>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> up: array<vec2<f32>>;
#endif
@group(0) @binding(next) var<storage, read_write> truth: array<vec2<f32>>;
#if GIVEN
@group(0) @binding(next) var<storage, read_write> y: array<element>;
#endif

fn input(k: u32, inverse: f32) -> f32 {
#if NORM
  return f32(x[k]) * inverse * f32(gamma[k]);
#else
  return f32(x[k]);
#endif
}

#if DENSE
fn weight(n: u32, k: u32) -> f32 {
  return f32(weights[k * N + n]);
}
#else
// The word that holds a weight. A row is whole words.
fn word_of(n: u32, k: u32) -> u32 {
  return n * (ROW_BITS / 32u) + k * BITS / 32u;
}

// Where the zero point of a weight's block begins, in bits.
fn zero_at(n: u32, k: u32) -> u32 {
  return n * ZERO_ROW_BITS + k / BLOCK * BITS;
}

fn number(word: u32, at: u32) -> f32 {
  return f32((word >> (at % 32u)) & ((1u << BITS) - 1u));
}

fn weight(n: u32, k: u32) -> f32 {
  var zero = f32(1u << (BITS - 1u));
#if ZEROS
  zero = number(zeros[zero_at(n, k) / 32u], zero_at(n, k));
#endif
  return (number(weights[word_of(n, k)], k * BITS) - zero) * f32(scales[n * BLOCKS + k / BLOCK]);
}
#endif

// A gate is x * sigmoid(bent(x)): SiLU, or GELU by its form with tanh.
fn bent(x: f32) -> f32 {
#if GELU
  return x * (1.5957691216057308 + 0.07135481627260025 * x * x);
#else
  return x;
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x;
  if (n >= N) {
    return;
  }
  var inverse = 1.0;
#if NORM
  var squared = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = f32(x[k]);
      part += value * value;
    }
    squared += part;
  }
  inverse = 1.0 / sqrt(squared / f32(K) + EPSILON);
#endif
  var sum = 0.0;
  var squares = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    var part_squares = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = input(k, inverse);
      let term = weight(n, k) * value;
      part += term;
      part_squares += term * term;
    }
    sum += part;
    squares += part_squares;
  }
  var value = sum;
  var spread = sqrt(squares) + abs(sum);
#if GATED
  // The slopes of SiLU and GELU are at most 1.13.
  let activated = sum / (1.0 + exp(-bent(sum)));
  value = activated * up[n].x;
  spread = 1.13 * spread * abs(up[n].x) + abs(activated) * up[n].y + abs(value);
#endif
#if RESIDUAL
  value += f32(residual[n]);
  spread += abs(value);
#endif
  truth[n] = vec2<f32>(value, spread);
#if GIVEN
  y[n] = element(value);
#endif
}
