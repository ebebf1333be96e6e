// The truth for a GEMV, in float32, and a bound of its rounding errors: one thread an output, plain loops.
//
// y[n] = sum over k of W[n][k] * x[k], with all that matvec_q4.wgsl and matvec_dense.wgsl compute before and behind it.
// W: int4 of MatMulNBits (BYTES: int8) with scales and, if ZEROS, zero points, packed as matvec_q4.wgsl tells; DENSE: [K, N]
// of `element`.
// truth[n] = (y[n], spread): `spread` is the 2-norm of the terms of the sum, brought through what follows it, plus the
// magnitude of each value that is rounded on the way. A rounding error is at most `spread` times the unit roundoff times a
// small factor (docs/design.md, "Checking"). Sums are taken in runs of RUN terms, so that their own error is far below.
// GIVEN: y, rounded to `element`, is written as well, where no recorded buffer has it.
// GATED: the activation of that times `up`, the truth of the other half. SUM: no product, but what is normalised before it
// (BEHIND), of N = K elements. HALF_X, HALF_STREAM: whether x and what surrounds the norms (gammas, beta, skip) are
// float16; else they are float32.
// Bindings, those whose condition holds: x, weights, scales, zeros, gamma, beta, gamma_behind, skip, residual, second, bias,
// exponent, factor, up, truth, y; with SUM only x, gamma_behind, skip, truth and y.
// Constants: N, K, BLOCK (elements that share a scale; any divisor of K where DENSE), EPSILON if NORM, EPSILON_BEHIND if
// BEHIND. Dispatch: N / 64.

const BLOCKS = (K + BLOCK - 1u) / BLOCK;
#if BYTES
const BITS = 8u;
#else
const BITS = 4u;
#endif
const ROW_BITS = BLOCKS * BLOCK * BITS;
const ZERO_ROW_BITS = (BLOCKS * BITS + 7u) / 8u * 8u;

#if HALF_X
alias Entering = f16;
#else
alias Entering = f32;
#endif
#if HALF_STREAM
alias Stream = f16;
#else
alias Stream = f32;
#endif
#if SUM
alias Made = Stream;
#else
alias Made = element;
#endif

@group(0) @binding(next) var<storage, read> x: array<Entering>;
#if SUM
#else
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
@group(0) @binding(next) var<storage, read> gamma: array<Stream>;
#endif
#if CENTERED
@group(0) @binding(next) var<storage, read> beta: array<Stream>;
#endif
#endif
#if BEHIND
@group(0) @binding(next) var<storage, read> gamma_behind: array<Stream>;
@group(0) @binding(next) var<storage, read> skip: array<Stream>;
#endif
#if RESIDUAL
@group(0) @binding(next) var<storage, read> residual: array<element>;
#endif
#if SECOND
@group(0) @binding(next) var<storage, read> second: array<element>;
#endif
#if BIAS
@group(0) @binding(next) var<storage, read> bias: array<element>;
#endif
#if POWER
@group(0) @binding(next) var<storage, read> exponent: array<i32>;
#endif
#if FACTOR
@group(0) @binding(next) var<storage, read> factor: array<element>;
#endif
#if GATED
@group(0) @binding(next) var<storage, read> up: array<vec2<f32>>;
#endif
@group(0) @binding(next) var<storage, read_write> truth: array<vec2<f32>>;
#if GIVEN
@group(0) @binding(next) var<storage, read_write> y: array<Made>;
#endif

// A value that is normalised before the product, and its magnitude: that of the values that are rounded on the way.
fn summed(k: u32, inverse_behind: f32) -> vec2<f32> {
#if BEHIND
  let value = f32(x[k]) * inverse_behind * f32(gamma_behind[k]);
  return vec2<f32>(f32(skip[k]) + value, abs(f32(skip[k])) + abs(value));
#else
  return vec2<f32>(f32(x[k]), abs(f32(x[k])));
#endif
}

#if SUM
#else
// A factor of the weights, and its magnitude.
fn input(k: u32, inverse_behind: f32, mean: f32, inverse: f32) -> vec2<f32> {
  let value = summed(k, inverse_behind);
#if NORM
  let gain = inverse * f32(gamma[k]);
#if CENTERED
  let shift = f32(beta[k]);
  return vec2<f32>((value.x - mean) * gain + shift, (value.y + abs(mean)) * abs(gain) + abs(shift));
#else
  return vec2<f32>(value.x * gain, value.y * abs(gain));
#endif
#else
  return value;
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

// The offset in bits of the zero point of a weight's block.
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

#endif

// A gate is x * sigmoid(bent(x)): SiLU, or GELU by its form with tanh.
fn bent(x: f32) -> f32 {
#if GELU
  return x * (1.5957691216057308 + 0.07135481627260025 * x * x);
#else
  return x;
#endif
}

#if POWER
// The activation and its slope.
fn activated(x: f32) -> vec2<f32> {
  let base = max(x, 0.0);
  let power = f32(exponent[0]);
  if (exponent[0] == 2) {
    return vec2<f32>(base * base, 2.0 * base);
  }
  return vec2<f32>(pow(base, power), power * pow(base, power - 1.0));
}
#else
// The activation, and the largest slope of SiLU and GELU.
fn activated(x: f32) -> vec2<f32> {
  return vec2<f32>(x / (1.0 + exp(-bent(x))), 1.13);
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x;
  if (n >= N) {
    return;
  }
  var inverse_behind = 1.0;
#if BEHIND
  var squared_behind = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = f32(x[k]);
      part += value * value;
    }
    squared_behind += part;
  }
  inverse_behind = 1.0 / sqrt(squared_behind / f32(K) + EPSILON_BEHIND);
#endif
#if SUM
  let value = summed(n, inverse_behind).x;
  let spread = summed(n, inverse_behind).y + abs(value);
#else
  var mean = 0.0;
#if CENTERED
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      part += summed(k, inverse_behind).x;
    }
    mean += part;
  }
  mean /= f32(K);
#endif
  var inverse = 1.0;
#if NORM
  var squared = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = summed(k, inverse_behind).x - mean;
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
      let value = input(k, inverse_behind, mean, inverse);
      let w = weight(n, k);
      part += w * value.x;
      part_squares += w * w * value.y * value.y;
    }
    sum += part;
    squares += part_squares;
  }
  var value = sum;
  var spread = sqrt(squares) + abs(sum);
#if BIAS
  value += f32(bias[n]);
  spread += abs(value);
#endif
#if GATED
  let gate = activated(value);
  spread = gate.y * spread * abs(up[n].x) + abs(gate.x) * up[n].y + abs(gate.x * up[n].x);
  value = gate.x * up[n].x;
#endif
#if ACTIVATED
  let made = activated(value);
#if POWER
  // If the slope is about zero, the square of the error remains.
  spread = (abs(made.y) + 0.01 * spread) * spread + abs(made.x);
#else
  spread = made.y * spread + abs(made.x);
#endif
  value = made.x;
#endif
#if FACTOR
  let by = f32(factor[0]);
#if CAPPED
  // The slope of tanh is at most 1; a value near its limits is a difference from the factor.
  spread += abs(by);
  value = by * tanh(clamp(value / by, -20.0, 20.0));
#else
#if DIVIDED
  value /= by;
  spread = spread / abs(by) + abs(value);
#else
  value *= by;
  spread = spread * abs(by) + abs(value);
#endif
#endif
#endif
#if RESIDUAL
  value += f32(residual[n]);
  spread += abs(value);
#endif
#if SECOND
  value += f32(second[n]);
  spread += abs(value);
#endif
#endif
  truth[n] = vec2<f32>(value, spread);
#if GIVEN
  y[n] = Made(value);
#endif
}
