// The truth for a GEMV, in float32, and a bound of its rounding errors: one thread an output, plain loops.
//
// y[FIRST + n] = sum over k of W[n][k] * x[k], with all that matvec_q4.wgsl and matvec_dense.wgsl compute before and after it, W
// as packing.wgsl has it or, without scales, [K, N] of `element`.
// truth[FIRST + n] = (y[FIRST + n], spread): `spread` is the 2-norm of the terms of the sum, brought through what follows it, plus the
// magnitude of each value that is rounded on the way. A rounding error is at most `spread` times the unit roundoff times a
// small factor (docs/design_checking.md). Sums are taken in runs of BLOCK terms, so that their own error is far below.
// Into any y goes the result, rounded to `element`, where no recorded buffer has it.
// With up: the activation of that times `up`, the truth of the other half. Without weights: no product, but what is
// normalised before it (with gamma_inner), of N = K elements. HALF_X, HALF_STREAM: whether x and what surrounds the norms
// (gammas, beta, skip) are float16; else they are float32.
// Constants: N, K, FIRST, BLOCK (elements that share a scale; any divisor of K without scales), EPSILON with gamma,
// EPSILON_INNER with gamma_inner. Dispatch: N / 64.

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
#if weights
alias Made = element;
#else
alias Made = Stream;
#endif
#if scales
alias Word = u32;
#else
alias Word = element;
#endif

#reads x: array<Entering>
#include packing
#reads gamma?: array<Stream>
#reads beta?: array<Stream>
#reads gamma_inner?: array<Stream>
#reads skip?: array<Stream>
#reads residual?: array<element>
#reads second?: array<element>
#reads bias?: array<element>
#reads exponent?: array<i32>
#reads factor?: array<element>
#reads up?: array<vec2<f32>>
#writes truth: array<vec2<f32>>
#writes y?: array<Made>

// A value that is normalised before the product, and its magnitude: that of the values that are rounded on the way.
fn summed(k: u32, inverse_inner: f32) -> vec2<f32> {
#if gamma_inner
  let value = f32(x[k]) * inverse_inner * f32(gamma_inner[k]);
  return vec2<f32>(f32(skip[k]) + value, abs(f32(skip[k])) + abs(value));
#else
  return vec2<f32>(f32(x[k]), abs(f32(x[k])));
#endif
}

#if weights
// A factor of the weights, and its magnitude.
fn input(k: u32, inverse_inner: f32, mean: f32, inverse: f32) -> vec2<f32> {
  let value = summed(k, inverse_inner);
#if gamma
  let gain = inverse * f32(gamma[k]);
#if beta
  let shift = f32(beta[k]);
  return vec2<f32>((value.x - mean) * gain + shift, (value.y + abs(mean)) * abs(gain) + abs(shift));
#else
  return vec2<f32>(value.x * gain, value.y * abs(gain));
#endif
#else
  return value;
#endif
}

#if !scales
fn weight(n: u32, k: u32) -> f32 {
  return f32(weights[k * N + n]);
}
#else
fn weight(n: u32, k: u32) -> f32 {
  let at = n * (BLOCKS * BLOCK) + k;
  var zero = f32(1u << (BITS - 1u));
#if zeros
  let zero_at = zero_of(n, k / BLOCK);
  zero = f32(number_in(zeros[zero_at / (32u / BITS)], zero_at));
#endif
  return (f32(number_in(weights[at / (32u / BITS)], at)) - zero) * f32(scales[n * BLOCKS + k / BLOCK]);
}
#endif

#endif

#if ERF
// erf, as onnxruntime has it: off by at most 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.3275911 * abs(x));
  let part = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1.0 - part * exp(-x * x));
}
#else
// A gate is x * sigmoid(bent(x)): SiLU, or GELU by its form with tanh.
fn bent(x: f32) -> f32 {
#if GELU
  return x * (1.5957691216057308 + 0.07135481627260025 * x * x);
#else
  return x;
#endif
}
#endif

#if exponent
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
#if ERF
  return vec2<f32>(0.5 * x * (1.0 + erf(x * 0.7071067811865475)), 1.13);
#else
  return vec2<f32>(x / (1.0 + exp(-bent(x))), 1.13);
#endif
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x;
  if (n >= N) {
    return;
  }
  var inverse_inner = 1.0;
#if gamma_inner
  var squared_inner = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = f32(x[k]);
      part += value * value;
    }
    squared_inner += part;
  }
  inverse_inner = 1.0 / sqrt(squared_inner / f32(K) + EPSILON_INNER);
#endif
#if !weights
  let value = summed(n, inverse_inner).x;
  let spread = summed(n, inverse_inner).y + abs(value);
#else
  var mean = 0.0;
#if beta
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      part += summed(k, inverse_inner).x;
    }
    mean += part;
  }
  mean /= f32(K);
#endif
  var inverse = 1.0;
#if gamma
  var squared = 0.0;
  for (var start = 0u; start < K; start += BLOCK) {
    var part = 0.0;
    for (var k = start; k < min(start + BLOCK, K); k++) {
      let value = summed(k, inverse_inner).x - mean;
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
      let value = input(k, inverse_inner, mean, inverse);
      let w = weight(n, k);
#if minima
      let least = f32(minima[k / BLOCK * N + n]);
      part += (w + least) * value.x;
      part_squares += (w * w + least * least) * value.y * value.y;
#else
      part += w * value.x;
      part_squares += w * w * value.y * value.y;
#endif
    }
    sum += part;
    squares += part_squares;
  }
  var value = sum;
  var spread = sqrt(squares) + abs(sum);
#if bias
  value += f32(bias[n]);
  spread += abs(value);
#endif
#if up
  let gate = activated(value);
  spread = gate.y * spread * abs(up[n].x) + abs(gate.x) * up[n].y + abs(gate.x * up[n].x);
  value = gate.x * up[n].x;
#endif
#if ACTIVATED
  let made = activated(value);
#if exponent
  // If the slope is about zero, the square of the error remains.
  spread = (abs(made.y) + 0.01 * spread) * spread + abs(made.x);
#else
  spread = made.y * spread + abs(made.x);
#endif
  value = made.x;
#endif
#if factor
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
#if residual
  value += f32(residual[n]);
  spread += abs(value);
#endif
#if second
  value += f32(second[n]);
  spread += abs(value);
#endif
#endif
  truth[FIRST + n] = vec2<f32>(value, spread);
#if y
  y[FIRST + n] = Made(value);
#endif
}
