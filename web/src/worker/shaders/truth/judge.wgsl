// How far an operation's result is from the truth (truth_gemv.wgsl, truth_attention.wgsl), in units of what rounding may
// do: |y - truth| / (UNIT * spread + FLOOR). One workgroup goes through all elements.
//
// Bindings: 0 y, 1 truth [n] of (value, spread), 2 state, 3 result: bits of the largest ratio, of the mean of its
// square, of y and of the truth at one element; that element, the one of the largest ratio or one that is finite in
// only one of the two; the number of such elements. ROWS: y is a cache [*, CAPACITY, HEAD] and the truth its row at
// position held(0) - 1. HALF_VALUES: y is float16, which needs no shader-f16 here. UNIT is the unit roundoff of y's
// type, LARGEST its largest number: past it, y may be infinite. QUANTIZED: the cache's rows are those of
// attention_shared.wgsl, which are right within half a step of their scale.

#reads y: array<u32>
#reads truth: array<vec2<f32>>
#reads state: array<u32>
#writes result: array<u32, 6>

var<workgroup> largest: array<f32, 64>;
var<workgroup> place: array<u32, 64>;
var<workgroup> squares: array<f32, 64>;
var<workgroup> unlike: array<u32, 64>;

#include held

fn finite(value: f32) -> bool {
  return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}

#if QUANTIZED
#include quantized_element

fn row_at(i: u32) -> u32 {
  return (i / HEAD * CAPACITY + held(0u) - 1u) * ROW;
}
#endif

// How far a value may be from the truth apart from rounding.
fn slack(i: u32) -> f32 {
#if QUANTIZED
  return 0.5001 * bitcast<f32>(y[row_at(i)]);
#else
  return 0.0;
#endif
}

fn value_of(i: u32) -> f32 {
#if QUANTIZED
  let row = row_at(i);
  return element_of_row(y[row + 1u + i % HEAD / IN_WORD], i % IN_WORD) * bitcast<f32>(y[row]);
#else
#if ROWS
  let at = (i / HEAD * CAPACITY + held(0u) - 1u) * HEAD + i % HEAD;
#else
  let at = i;
#endif
#if HALF_VALUES
  let pair = unpack2x16float(y[at / 2u]);
  return select(pair.x, pair.y, at % 2u == 1u);
#else
  return bitcast<f32>(y[at]);
#endif
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32) {
  let count = arrayLength(&truth);
  var most = 0.0;
  var most_at = 0u;
  var squared = 0.0;
  var different = 0u;
  var stray = 0u;
  for (var i = thread; i < count; i += 64u) {
    let value = value_of(i);
    let wanted = truth[i];
    let known = finite(wanted.x) && finite(wanted.y);
    if (finite(value) && known) {
      let ratio = max(abs(value - wanted.x) - slack(i), 0.0) / (UNIT * wanted.y + FLOOR);
      squared += ratio * ratio;
      if (ratio > most) {
        most = ratio;
        most_at = i;
      }
    } else if (finite(value) != known && !(known && abs(wanted.x) >= LARGEST)) {
      different += 1u;
      stray = i;
    }
  }
  largest[thread] = most;
  place[thread] = select(most_at, stray, different > 0u);
  squares[thread] = squared;
  unlike[thread] = different;
  workgroupBarrier();
  if (thread == 0u) {
    most_at = place[0];
    for (var i = 1u; i < 64u; i++) {
      squared += squares[i];
      if (unlike[i] > 0u || (different == 0u && largest[i] > most)) {
        most_at = place[i];
      }
      different += unlike[i];
      most = max(most, largest[i]);
    }
    result[0] = bitcast<u32>(most);
    result[1] = bitcast<u32>(squared / f32(count));
    result[2] = bitcast<u32>(value_of(most_at));
    result[3] = bitcast<u32>(truth[most_at].x);
    result[4] = most_at;
    result[5] = different;
  }
}
