// The truth for the result of delta_rule.wgsl for one token, in float32, and a bound of its rounding errors, as in truth_gemv.wgsl.
//
// The logarithm of the decay is rounded, so the bound grows with it. Constants and bindings: as there. Dispatch: (HEADS * VALUE / 64).

#if WIDE
alias Held = f32;
#else
alias Held = element;
#endif

#reads x: array<element>
#reads decay: array<element>
#reads step?: array<element>
#reads bias: array<f32>
#reads rate: array<f32>
#reads factor?: array<element>
#reads past: array<Held>
#writes truth: array<vec2<f32>>

const KEYS = KEY_HEADS * KEY;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= HEADS * VALUE) {
    return;
  }
  let head = i / VALUE;
#if TURNS
  let key_at = head % KEY_HEADS * KEY;
#else
  let key_at = head * KEY_HEADS / HEADS * KEY;
#endif
  var q_squares = 0.0;
  var k_squares = 0.0;
  for (var j = 0u; j < KEY; j++) {
    let q = f32(x[key_at + j]);
    let k = f32(x[KEYS + key_at + j]);
    q_squares += q * q;
    k_squares += k * k;
  }
  let root = sqrt(f32(KEY));
  var q_unit = 1.0 / (sqrt(q_squares / f32(KEY) + EPSILON) * root);
  let k_unit = 1.0 / (sqrt(k_squares / f32(KEY) + EPSILON) * root);
#if factor
  q_unit *= f32(factor[0]);
#endif
#if step
  let pace = f32(step[head]);
#else
  let pace = f32(decay[HEADS + head]);
#endif
  let entering = f32(decay[head]) + bias[head];
  let fall = rate[head] * (max(entering, 0.0) + log(1.0 + exp(-abs(entering))));
  let shrink = exp(fall);
  var retrieved = 0.0;
  var asked = 0.0;
  var both = 0.0;
  var squares = vec3<f32>();
  for (var j = 0u; j < KEY; j++) {
    let q = f32(x[key_at + j]) * q_unit;
    let k = f32(x[KEYS + key_at + j]) * k_unit;
    let held = shrink * f32(past[(head * KEY + j) * VALUE + i % VALUE]);
    let terms = vec3<f32>(held * k, held * q, q * k);
    retrieved += terms.x;
    asked += terms.y;
    both += terms.z;
    squares += terms * terms;
  }
  let spreads = 3.0 * sqrt(squares) + 3.0 * abs(vec3<f32>(retrieved, asked, both));
  let strength = 1.0 / (1.0 + exp(-pace));
  let value = f32(x[2u * KEYS + i]);
  let learned = strength * (value - retrieved);
  let unsure = strength * (abs(value) + spreads.x + abs(fall * retrieved)) + (3.0 + abs(pace)) * abs(learned);
  let result = SCALE * (asked + learned * both);
  let spread = spreads.y + abs(fall * asked) + abs(both) * unsure + abs(learned) * spreads.z;
  truth[i] = vec2<f32>(result, SCALE * spread + abs(result));
}
