// A causal convolution of each channel with the inputs of the tokens before: y[c] = sum over j of weight[c, j] * input[j], the last
// of TAPS inputs is the token's own, the others are the state's.
//
// With bias, + bias[c]; ACTIVATED: then silu. GATED: x is three vectors, the input is the first times the third, and the result is
// multiplied by the second. x and y have a row for each of POSITIONS tokens. past is [CHANNELS, TAPS - 1]. With kept, [POSITIONS,
// CHANNELS, TAPS - 1], the state after each token goes there, and past stays; without it there is one token.
// Dispatch: (CHANNELS / 64).

#reads x: array<element>
#reads weight: array<element>
#reads bias?: array<element>
#writes past: array<element>
#writes kept?: array<element>
#writes y: array<element>

#if GATED
const WIDTH = 3u * CHANNELS;
#else
const WIDTH = CHANNELS;
#endif
const HELD = TAPS - 1u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let channel = id.x;
  if (channel >= CHANNELS) {
    return;
  }
  let state_at = channel * HELD;
  var inputs = array<f32, TAPS>();
  for (var j = 0u; j < HELD; j++) {
    inputs[j] = f32(past[state_at + j]);
  }
  for (var row = 0u; row < POSITIONS; row++) {
    let at = row * WIDTH + channel;
#if GATED
    // Rounded, as the state holds it.
    inputs[HELD] = f32(element(f32(x[at]) * f32(x[at + 2u * CHANNELS])));
#else
    inputs[HELD] = f32(x[at]);
#endif
    var sum = 0.0;
    for (var j = 0u; j < TAPS; j++) {
      sum += inputs[j] * f32(weight[channel * TAPS + j]);
    }
#if bias
    sum += f32(bias[channel]);
#endif
#if ACTIVATED
    sum /= 1.0 + exp(-sum);
#endif
#if GATED
    sum *= f32(x[at + CHANNELS]);
#endif
    y[row * CHANNELS + channel] = element(sum);
    for (var j = 0u; j < HELD; j++) {
      inputs[j] = inputs[j + 1u];
#if kept
      kept[(row * CHANNELS + channel) * HELD + j] = element(inputs[j]);
#else
      past[state_at + j] = element(inputs[j]);
#endif
    }
  }
}
