// Rows normalised for the products that read them: normed[m] = norm of x[m], computed in float32.
//
// The norm is x / sqrt(mean(x^2) + EPSILON) * gamma; with beta, x less its mean before that, + beta after it. With
// gamma_inner, x is skip + x / sqrt(mean(x^2) + EPSILON_INNER) * gamma_inner first, which is written to any total.
// WIDE: x (with gamma_inner skip and total instead), gammas and beta are float32 although other values are float16.
// A row of normed has OF elements, those of the norm from FIRST on. A workgroup takes a row; each thread holds ITEMS = ceil(K / WORKGROUP) elements of it.
// Dispatch: (rows, 1, 1).

#if WIDE
alias stream = f32;
#else
alias stream = element;
#endif
#if gamma_inner
alias entering = element;
#else
alias entering = stream;
#endif

#reads x: array<entering>
#reads gamma: array<stream>
#reads beta?: array<stream>
#reads gamma_inner?: array<stream>
#reads skip?: array<stream>
#writes total?: array<stream>
#writes normed: array<element>

#if SUBGROUPS
const PARTS: u32 = WORKGROUP / LANES;
#else
const PARTS: u32 = WORKGROUP;
#endif
var<workgroup> parts: array<f32, 3u * PARTS>; // sums take turns

// The mean over a row of a value that each thread has the sum of for its elements; `turn` differs from mean to mean.
fn mean_of(thread: u32, value: f32, turn: u32) -> f32 {
  let first = turn * PARTS;
#if SUBGROUPS
  let part = subgroupAdd(value);
  if (thread % LANES == 0u) {
    parts[first + thread / LANES] = part;
  }
#else
  parts[first + thread] = value;
#endif
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < PARTS; i++) {
    sum += parts[first + i];
  }
  return sum / f32(K);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.x * K;
  var line = array<f32, ITEMS>();
#repeat i ITEMS
  let at = thread + i * WORKGROUP;
  if (at < K) {
    line[i] = f32(x[row + at]);
  }
#end
#if gamma_inner
  var inner_squares = 0.0;
#repeat i ITEMS
  inner_squares += line[i] * line[i];
#end
  let inverse_inner = inverseSqrt(mean_of(thread, inner_squares, 0u) + EPSILON_INNER);
#repeat i ITEMS
  let at = thread + i * WORKGROUP;
  if (at < K) {
    line[i] = f32(skip[row + at]) + line[i] * inverse_inner * f32(gamma_inner[at]);
#if total
    total[row + at] = stream(line[i]);
#endif
  }
#end
#endif
#if beta
  var all = 0.0;
#repeat i ITEMS
  all += line[i];
#end
  let mean = mean_of(thread, all, 1u);
#repeat i ITEMS
  line[i] = select(0.0, line[i] - mean, thread + i * WORKGROUP < K);
#end
#endif
  var squared = 0.0;
#repeat i ITEMS
  squared += line[i] * line[i];
#end
  let inverse = inverseSqrt(mean_of(thread, squared, 2u) + EPSILON);
#repeat i ITEMS
  let at = thread + i * WORKGROUP;
  if (at < K) {
#if beta
    normed[group.x * OF + FIRST + at] = element(line[i] * inverse * f32(gamma[at]) + f32(beta[at]));
#else
    normed[group.x * OF + FIRST + at] = element(line[i] * inverse * f32(gamma[at]));
#endif
  }
#end
}
