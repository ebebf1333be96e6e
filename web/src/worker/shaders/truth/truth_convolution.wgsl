// The truth for convolution.wgsl over one token, in float32, and a bound of its rounding errors, as in truth_gemv.wgsl.
//
// Constants and bindings: as there. Dispatch: (CHANNELS / 64).

#reads x: array<element>
#reads weight: array<element>
#reads bias?: array<element>
#reads past: array<element>
#writes truth: array<vec2<f32>>

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let channel = id.x;
  if (channel >= CHANNELS) {
    return;
  }
#if GATED
  let input = f32(element(f32(x[channel]) * f32(x[channel + 2u * CHANNELS])));
#else
  let input = f32(x[channel]);
#endif
  let last = f32(weight[channel * TAPS + TAPS - 1u]) * input;
  var value = last;
  var squares = last * last;
  for (var j = 0u; j + 1u < TAPS; j++) {
    let term = f32(weight[channel * TAPS + j]) * f32(past[channel * (TAPS - 1u) + j]);
    value += term;
    squares += term * term;
  }
  // The newest input is rounded, too.
  var spread = sqrt(squares) + abs(last) + abs(value);
#if bias
  value += f32(bias[channel]);
  spread += abs(value);
#endif
#if ACTIVATED
  let magnitude = abs(value);
  value /= 1.0 + exp(-value);
  spread = 1.13 * spread + abs(value) * (3.0 + magnitude);
#endif
#if GATED
  let gate = f32(x[channel + CHANNELS]);
  value *= gate;
  spread = abs(gate) * spread + 2.0 * abs(value);
#endif
  truth[channel] = vec2<f32>(value, spread);
}
