// A few rows times a matrix in int4 or int8: y[m][FIRST + n] = sum over k of W[n][k] * x[m][k], fused with the operations
// after it.
//
// W as packing.wgsl has it; a weight is loaded and unpacked once for TALL rows of x. x is [M, K], y [M, OF].
// After the product: + bias[n], of W_up + bias_up[n]; what product_epilogue.wgsl computes, with up by up[m][n];
// + residual[m][n]; + second[m][n]. Sums are float32; with HALF, 8 products are added as float16 before that.
//
// SPAN threads share ROWS rows of W (a tile: WORKGROUP / SPAN * ROWS rows) and take every SPAN-th eight elements of
// them, BATCH requests at once, so that neighbours load neighbouring words of W and neighbouring octets of x, which all
// workgroups read through their cache. With subgroups each shuffle halves the sums that a thread holds; what is left of
// them meets in workgroup memory, where each thread finishes some results.
// Dispatch: (tiles, ceil(M / TALL), 1).
// Counts that follow from the others: LINES = ROWS, twice that with weights_up, SUMS = LINES * TALL, HALF_SUMS = SUMS / 2,
// HALF_TALL = TALL / 2,
// REQUESTS = BATCH * LINES, HALVINGS = log2 of the threads whose sums meet by shuffles, LEFT = max(1, SUMS >> HALVINGS).
// Limits: K a multiple of 32, BLOCK of 16; ROWS, TALL (2 at least), SPAN, WORKGROUP powers of two. With subgroups:
// WORKGROUP a multiple of LANES, threads numbered along their subgroups.

alias Word = Eight;

#include packed_weights
#include product_epilogue

const OCTETS: u32 = K / 8u;
const ROOM: u32 = BLOCKS * (BLOCK / 8u); // octets that fit into a row's blocks
const TEAMS: u32 = WORKGROUP / SPAN;
const TILE: u32 = TEAMS * ROWS;
#if SUBGROUPS
const WIDTH: u32 = min(SPAN, LANES); // threads whose sums meet by shuffles
#else
const WIDTH: u32 = 1u;
#endif
const PARTS: u32 = SPAN / WIDTH;

#reads x: array<Octet>

var<workgroup> parts: array<f32, TEAMS * SUMS * PARTS>;

// A thread's loads of W: request b and line r (the rows of weights_up follow) are at b * LINES + r.
struct Request {
  words: array<Eight, REQUESTS>,
  factors: array<element, REQUESTS>,
#if zeros
  zeros: array<element, REQUESTS>, // their shares
#endif
#if minima
  minima: array<element, REQUESTS>,
#endif
}

#if HALF
// Eight elements of two rows of x, those of one row in the lower halves.
fn beside(o: Octet, p: Octet) -> array<vec2<f16>, 8> {
  return array<vec2<f16>, 8>(
    halves_of((o.x & 0xffffu) | (p.x << 16u)), halves_of((o.x >> 16u) | (p.x & 0xffff0000u)),
    halves_of((o.y & 0xffffu) | (p.y << 16u)), halves_of((o.y >> 16u) | (p.y & 0xffff0000u)),
    halves_of((o.z & 0xffffu) | (p.z << 16u)), halves_of((o.z >> 16u) | (p.z & 0xffff0000u)),
    halves_of((o.w & 0xffffu) | (p.w << 16u)), halves_of((o.w >> 16u) | (p.w & 0xffff0000u)));
}

// The products of eight weights with both rows.
fn pair_dot(w: Spread, x: array<vec2<f16>, 8>) -> vec2<f16> {
#if BYTES
  let first = fma(w.b.yy, x[3], fma(w.a.yy, x[2], fma(w.b.xx, x[1], w.a.xx * x[0])));
  return fma(w.d.yy, x[7], fma(w.c.yy, x[6], fma(w.d.xx, x[5], fma(w.c.xx, x[4], first))));
#else
  let first = fma(w.d.xx, x[3], fma(w.c.xx, x[2], fma(w.b.xx, x[1], w.a.xx * x[0])));
  return fma(w.d.yy, x[7], fma(w.c.yy, x[6], fma(w.b.yy, x[5], fma(w.a.yy, x[4], first))));
#endif
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let member = thread % SPAN;
  let team = thread / SPAN;
  let first = group.x * TILE + team * ROWS;
  let top = group.y * TALL;

  var sums = array<f32, SUMS>();
  for (var start = member; start < OCTETS; start += SPAN * BATCH) {
    var wanted: Request;
#repeat b BATCH
    let at = min(start + b * SPAN, OCTETS - 1u);
    let block = at / (BLOCK / 8u);
#repeat r ROWS
    let row = min(first + r, N - 1u);
    wanted.words[b * LINES + r] = weights[row * ROOM + at];
    wanted.factors[b * LINES + r] = scales[row * BLOCKS + block];
#if zeros
    let zero_at = zero_of(row, block);
    wanted.zeros[b * LINES + r] = zero_share(zeros[zero_at / (32u / BITS)], zero_at);
#endif
#if minima
    wanted.minima[b * LINES + r] = minima[block * N + row];
#endif
#if weights_up
    wanted.words[b * LINES + ROWS + r] = weights_up[row * ROOM + at];
    wanted.factors[b * LINES + ROWS + r] = scales_up[row * BLOCKS + block];
#if zeros
    wanted.zeros[b * LINES + ROWS + r] = zero_share(zeros_up[zero_at / (32u / BITS)], zero_at);
#endif
#if minima
    wanted.minima[b * LINES + ROWS + r] = minima_up[block * N + row];
#endif
#endif
#end
#end
#repeat b BATCH
    let at = start + b * SPAN;
    if (at < OCTETS) {
      var spreads = array<Spread, LINES>();
#repeat r LINES
#if zeros
      spreads[r] = spread(wanted.words[b * LINES + r], wanted.zeros[b * LINES + r]);
#else
      spreads[r] = spread(wanted.words[b * LINES + r], ZERO);
#endif
#end
#if HALF
#repeat p HALF_TALL
      let pairs = beside(x[min(top + 2u * p, M - 1u) * OCTETS + at], x[min(top + 2u * p + 1u, M - 1u) * OCTETS + at]);
#if minima
      let pair_sum = vec2<f32>((pairs[0] + pairs[1]) + (pairs[2] + pairs[3]) + ((pairs[4] + pairs[5]) + (pairs[6] + pairs[7])));
#endif
#repeat r LINES
#if minima
      let both = vec2<f32>(pair_dot(spreads[r], pairs)) * f32(wanted.factors[b * LINES + r])
        + pair_sum / SHARE * f32(wanted.minima[b * LINES + r]);
#else
      let both = vec2<f32>(pair_dot(spreads[r], pairs)) * f32(wanted.factors[b * LINES + r]);
#endif
      sums[r * TALL + 2u * p] += both.x;
      sums[r * TALL + 2u * p + 1u] += both.y;
#end
#end
#else
#repeat m TALL
      let octet = x[min(top + m, M - 1u) * OCTETS + at];
#repeat r LINES
      sums[r * TALL + m] += spread_dot(spreads[r], octet) * wanted.factors[b * LINES + r];
#if minima
      sums[r * TALL + m] += octet_sum(octet) * wanted.minima[b * LINES + r];
#endif
#end
#end
#endif
    }
#end
  }

#if SUBGROUPS
  // A thread whose bit of the mask is set keeps the upper half of its sums, its neighbour the lower half.
  var base = 0u;
#repeat h HALVINGS
  const MASK = WIDTH >> (h + 1u);
  const KEPT = SUMS >> (h + 1u);
  let upper = (thread & MASK) != 0u;
  base += select(0u, KEPT, upper);
#repeat i HALF_SUMS
  if (i < KEPT) {
    let given = select(sums[i + KEPT], sums[i], upper);
    let own = select(sums[i], sums[i + KEPT], upper);
    sums[i] = own + subgroupShuffleXor(given, MASK);
  }
#end
  if (KEPT == 0u) {
    sums[0] += subgroupShuffleXor(sums[0], MASK);
  }
#end
  if (thread % max(1u, WIDTH / SUMS) == 0u) {
#repeat i LEFT
    parts[(team * SUMS + base + i) * PARTS + member / WIDTH] = sums[i];
#end
  }
#else
#repeat i SUMS
  parts[(team * SUMS + i) * PARTS + member] = sums[i];
#end
#endif
  workgroupBarrier();

  for (var j = thread; j < TILE * TALL; j += WORKGROUP) {
    let line = j % TILE;
    let n = group.x * TILE + line;
    let m = top + j / TILE;
    if (n < N && m < M) {
      let at = (line / ROWS * SUMS + line % ROWS * TALL + j / TILE) * PARTS;
      var product = 0.0;
      var other = 0.0;
      for (var p = 0u; p < PARTS; p++) {
        product += parts[at + p];
#if weights_up
        other += parts[at + ROWS * TALL * PARTS + p];
#endif
      }
      y[m * OF + FIRST + n] = finished(n, m * N + n, product * SHARE, other * SHARE);
    }
  }
}
