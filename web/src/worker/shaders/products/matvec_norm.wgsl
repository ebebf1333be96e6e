// The RMS norm of x in matvec_q4.wgsl, in its own type: squares and scaling of eight elements, and sums over a workgroup.

#if SUBGROUPS
const SQUARES: u32 = WORKGROUP / LANES;
#else
const SQUARES: u32 = WORKGROUP;
#endif
var<workgroup> squares: array<f32, 2u * SQUARES>; // sums take turns

#if HALF
fn halves(word: u32) -> vec2<f32> {
  return vec2<f32>(halves_of(word));
}

fn square(o: Octet) -> f32 {
  let a = vec4<f32>(halves(o.x), halves(o.y));
  let b = vec4<f32>(halves(o.z), halves(o.w));
  return dot(a, a) + dot(b, b);
}

fn scaled_pair(word: u32, factor: u32, inverse: f32) -> u32 {
  return as_word(vec2<f16>(halves(word) * halves(factor) * inverse));
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(scaled_pair(o.x, g.x, inverse), scaled_pair(o.y, g.y, inverse), //
               scaled_pair(o.z, g.z, inverse), scaled_pair(o.w, g.w, inverse));
}
#else
fn square(o: Octet) -> f32 {
  return dot(o[0], o[0]) + dot(o[1], o[1]);
}

fn scaled(o: Octet, g: Octet, inverse: f32) -> Octet {
  return Octet(o[0] * g[0] * inverse, o[1] * g[1] * inverse);
}
#endif

// The sum of a value over the workgroup; `turn` is 0 and 1 in turn.
fn workgroup_sum(thread: u32, value: f32, turn: u32) -> f32 {
  let first = turn * SQUARES;
#if SUBGROUPS
  let part = subgroupAdd(value);
  if (thread % LANES == 0u) {
    squares[first + thread / LANES] = part;
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SQUARES; i++) {
    sum += squares[first + i];
  }
#else
  squares[first + thread] = value;
  workgroupBarrier();
  if (thread < 8u) {
    for (var i = thread + 8u; i < SQUARES; i += 8u) {
      squares[first + thread] += squares[first + i];
    }
  }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < 8u; i++) {
    sum += squares[first + i];
  }
#endif
  return sum;
}
