// All that comes before the product in matvec_q4.wgsl, in float32, where that is more than an RMS norm of x in its own
// type. A thread prepares MINE octets of x.
//
// With gamma_inner, x is skip + x / sqrt(mean(x^2) + EPSILON_INNER) * gamma_inner before the norm; the first workgroup
// writes that to total. With beta, x less its mean is normalised, and beta added. WIDE: x (with gamma_inner skip and
// total instead), gammas and beta are float32 although other values are float16.

// The mean over x of a value that each thread has of its part.
fn mean_of(thread: u32, value: f32, turn: u32) -> f32 {
#if STAGED
  return workgroup_sum(thread, value, turn) / f32(K);
#else
#if SPLIT
  return workgroup_sum(thread, value, turn) / f32(TEAMS) / f32(K);
#else
  var sum = value;
#repeat h HALVINGS
  sum += subgroupShuffleXor(sum, WIDTH >> (h + 1u));
#end
  return sum / f32(K);
#endif
#endif
}

// Which octet of x a thread has as its i-th.
fn octet_of(thread: u32, i: u32) -> u32 {
#if STAGED
  return thread + i * WORKGROUP;
#else
  return 4u * (thread % SPAN + i / 4u * SPAN) + i % 4u;
#endif
}

fn times(a: mat2x4<f32>, b: mat2x4<f32>) -> mat2x4<f32> {
  return mat2x4<f32>(a[0] * b[0], a[1] * b[1]);
}

fn all_of(a: mat2x4<f32>) -> f32 {
  return dot(a[0] + a[1], vec4<f32>(1.0));
}

fn squares_of(a: mat2x4<f32>) -> f32 {
  return dot(a[0], a[0]) + dot(a[1], a[1]);
}

#if HALF
fn widened(o: Octet) -> mat2x4<f32> {
  return mat2x4<f32>(vec4<f32>(halves(o.x), halves(o.y)), vec4<f32>(halves(o.z), halves(o.w)));
}

fn narrowed(a: mat2x4<f32>) -> Octet {
  return Octet(as_word(vec2<f16>(a[0].xy)), as_word(vec2<f16>(a[0].zw)), //
               as_word(vec2<f16>(a[1].xy)), as_word(vec2<f16>(a[1].zw)));
}
#else
fn widened(a: Octet) -> mat2x4<f32> {
  return a;
}

fn narrowed(a: mat2x4<f32>) -> Octet {
  return a;
}
#endif

#if WIDE
fn streamed(a: Stream) -> mat2x4<f32> {
  return a;
}

fn stream_of(a: mat2x4<f32>) -> Stream {
  return a;
}
#else
fn streamed(a: Stream) -> mat2x4<f32> {
  return widened(a);
}

fn stream_of(a: mat2x4<f32>) -> Stream {
  return narrowed(a);
}
#endif

// The octets of x that a thread has, with all that comes before the product.
fn prepared(thread: u32, first: bool) -> array<Octet, MINE> {
  var lines = array<mat2x4<f32>, MINE>();
  var gains = array<Stream, MINE>();
#if beta
  var shifts = array<Stream, MINE>();
#endif
#if gamma_inner
  var skipped = array<Stream, MINE>();
  var gains_inner = array<Stream, MINE>();
#endif
#repeat i MINE
  let at = octet_of(thread, i);
  if (at < OCTETS) {
#if gamma_inner
    lines[i] = widened(x[at]);
    skipped[i] = skip[at];
    gains_inner[i] = gamma_inner[at];
#else
    lines[i] = streamed(x[at]);
#endif
    gains[i] = gamma[at];
#if beta
    shifts[i] = beta[at];
#endif
  }
#end
#if gamma_inner
  var inner_squares = 0.0;
#repeat i MINE
  inner_squares += squares_of(lines[i]);
#end
  let inverse_inner = inverseSqrt(mean_of(thread, inner_squares, 0u) + EPSILON_INNER);
#repeat i MINE
  lines[i] = streamed(skipped[i]) + times(lines[i], streamed(gains_inner[i])) * inverse_inner;
#if total
  let at = octet_of(thread, i);
  if (first && at < OCTETS) {
    total[at] = stream_of(lines[i]);
  }
#endif
#end
#endif
#if beta
  var all = 0.0;
#repeat i MINE
  all += all_of(lines[i]);
#end
  let mean = mean_of(thread, all, 0u);
#repeat i MINE
  if (octet_of(thread, i) < OCTETS) {
    lines[i] -= mat2x4<f32>(vec4<f32>(mean), vec4<f32>(mean));
  }
#end
#endif
  var squared = 0.0;
#repeat i MINE
  squared += squares_of(lines[i]);
#end
  let inverse = inverseSqrt(mean_of(thread, squared, 1u) + EPSILON);
  var made = array<Octet, MINE>();
#repeat i MINE
#if beta
  made[i] = narrowed(times(lines[i], streamed(gains[i])) * inverse + streamed(shifts[i]));
#else
  made[i] = narrowed(times(lines[i], streamed(gains[i])) * inverse);
#endif
#end
  return made;
}
