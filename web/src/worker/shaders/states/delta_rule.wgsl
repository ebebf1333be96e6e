// Linear attention by the gated delta rule: each head of v has a state S, [KEY, VALUE], which decays, learns the token's key and value,
// and gives its result for the token's query.
//
// q and k are the heads of x, each divided by its length (the root of KEY times the mean of its squares, which is at least EPSILON); with
// factor, q is multiplied by its first element. S is multiplied by exp(rate * softplus(decay + bias)), then k (v - S k) * sigmoid(step)
// is added; y = SCALE * S q. All sums are f32.
// For each of POSITIONS tokens x is [2 * KEY_HEADS * KEY + HEADS * VALUE], q, k and v; decay, step [HEADS] (without step it
// follows decay in each row); y [HEADS * VALUE]. bias,
// rate: [HEADS]. past: the state, [HEADS, KEY, VALUE]. Neighbouring heads of v share one of q
// and k; TURNS: they take these in turns. With kept, [POSITIONS, HEADS, KEY,
// VALUE], the state after each token goes there, and past stays; without it there is one token.
// WIDE: the state is float32 although other values are float16. A workgroup takes QUADS quads (four values) of a head; TEAMS threads share the KEY rows of a quad, SHARE rows each.
// With gate: a workgroup has a whole head of one token; normed is gated_head_norm.wgsl's result, with NORM_EPSILON.
// Dispatch: (VALUE / 4 / QUADS, HEADS).

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
#writes past: array<vec4<Held>>
#writes kept?: array<vec4<Held>>
#writes y: array<element>
#reads gate?: array<element>
#reads gamma?: array<element>
#writes normed?: array<element>

const KEYS = KEY_HEADS * KEY;
const WIDTH = 2u * KEYS + HEADS * VALUE;
const ROW = VALUE / 4u; // quads of a row of the state
const STATE = HEADS * KEY * ROW; // quads of the state

var<workgroup> retrieved_parts: array<vec4<f32>, WORKGROUP>;
var<workgroup> asked_parts: array<vec4<f32>, WORKGROUP>;
var<workgroup> square_parts: array<vec4<f32>, TEAMS>;
#if gate
var<workgroup> result_squares: array<f32, QUADS>;
#endif

fn softplus(x: f32) -> f32 {
  return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.y;
  let quad = group.x * QUADS + thread % QUADS;
  let team = thread / QUADS;
#if TURNS
  let key_at = head % KEY_HEADS * KEY;
#else
  let key_at = head * KEY_HEADS / HEADS * KEY;
#endif
  let state_at = head * KEY * ROW + quad;
  var held = array<vec4<f32>, SHARE>();
  var keys = array<f32, SHARE>();
  for (var i = 0u; i < SHARE; i++) {
    held[i] = vec4<f32>(past[state_at + (i * TEAMS + team) * ROW]);
  }
  for (var row = 0u; row < POSITIONS; row++) {
    let at = row * WIDTH;
    var retrieved = vec4<f32>();
    var asked = vec4<f32>();
    var squares = vec4<f32>(); // of q, of k, and their product
    for (var i = 0u; i < SHARE; i++) {
      let q = f32(x[at + key_at + i * TEAMS + team]);
      keys[i] = f32(x[at + KEYS + key_at + i * TEAMS + team]);
      retrieved += held[i] * keys[i];
      asked += held[i] * q;
      squares += vec4<f32>(q * q, keys[i] * keys[i], q * keys[i], 0.0);
    }
    retrieved_parts[thread] = retrieved;
    asked_parts[thread] = asked;
    if (thread % QUADS == 0u) {
      square_parts[team] = squares;
    }
    workgroupBarrier();
    retrieved = vec4<f32>();
    asked = vec4<f32>();
    squares = vec4<f32>();
    for (var i = 0u; i < TEAMS; i++) {
      retrieved += retrieved_parts[i * QUADS + thread % QUADS];
      asked += asked_parts[i * QUADS + thread % QUADS];
      squares += square_parts[i];
    }
    var q_unit = inverseSqrt(squares.x + EPSILON * f32(KEY));
    let k_unit = inverseSqrt(squares.y + EPSILON * f32(KEY));
#if factor
    q_unit *= f32(factor[0]);
#endif
#if step
    let fall = f32(decay[row * HEADS + head]);
    let pace = f32(step[row * HEADS + head]);
#else
    let fall = f32(decay[row * 2u * HEADS + head]);
    let pace = f32(decay[row * 2u * HEADS + HEADS + head]);
#endif
    let shrink = exp(rate[head] * softplus(fall + bias[head]));
    let strength = 1.0 / (1.0 + exp(-pace));
    let value_at = at + 2u * KEYS + head * VALUE + 4u * quad;
    let value = vec4<f32>(f32(x[value_at]), f32(x[value_at + 1u]), f32(x[value_at + 2u]), f32(x[value_at + 3u]));
    let learned = strength * (value - shrink * k_unit * retrieved);
    let result = SCALE * (shrink * q_unit * asked + learned * (squares.z * q_unit * k_unit));
    if (team == 0u) {
      let y_at = row * HEADS * VALUE + head * VALUE + 4u * quad;
      for (var i = 0u; i < 4u; i++) {
        y[y_at + i] = element(result[i]);
      }
    }
#if gate
    if (team == 0u) {
      result_squares[quad] = dot(result, result);
    }
    workgroupBarrier();
    var sizes = 0.0;
    for (var i = 0u; i < QUADS; i++) {
      sizes += result_squares[i];
    }
    if (team == 0u) {
      let inverse = inverseSqrt(sizes / f32(VALUE) + NORM_EPSILON);
      for (var i = 0u; i < 4u; i++) {
        let open = f32(gate[head * VALUE + 4u * quad + i]);
        let value = result[i] * inverse * f32(gamma[4u * quad + i]);
        normed[head * VALUE + 4u * quad + i] = element(value * open / (1.0 + exp(-open)));
      }
    }
#endif
    for (var i = 0u; i < SHARE; i++) {
      held[i] = shrink * held[i] + keys[i] * k_unit * learned;
#if kept
      kept[row * STATE + state_at + (i * TEAMS + team) * ROW] = vec4<Held>(held[i]);
#else
      past[state_at + (i * TEAMS + team) * ROW] = vec4<Held>(held[i]);
#endif
    }
    workgroupBarrier(); // the parts are read
  }
}
