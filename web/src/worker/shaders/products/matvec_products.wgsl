    // Part of main in matvec_q4.wgsl: a thread's products of a tile, in `sums`.
    var sums = array<f32, SUMS>(); // without an initialiser SwiftShader keeps those of the last tile
#repeat s STEPS
#if STAGED
    let run = member + s * SPAN;
    let a = staged[run];
    let b = staged[STRIDE + run];
    let c = staged[2u * STRIDE + run];
    let d = staged[3u * STRIDE + run];
#else
    let a = held[4u * s];
    let b = held[4u * s + 1u];
    let c = held[4u * s + 2u];
    let d = held[4u * s + 3u];
#endif
#if minima
    let lower_sum = octet_sum(a) + octet_sum(b);
    let upper_sum = octet_sum(c) + octet_sum(d);
#endif
#repeat r SUMS
    let at = r * STEPS + s;
#if zeros
    let row = min(tile * TILE + team * ROWS + r % ROWS, N - 1u);
    let place = zero_of(row, block_of(min(member + s * SPAN, RUNS - 1u)));
    let zero = zero_share(wanted.zeros[at], place);
#if SIXTEENS
    let zero_after = zero_share(wanted.zeros[at], place + 1u);
#else
    let zero_after = zero;
#endif
#else
    let zero = ZERO;
    let zero_after = ZERO;
#endif
#if BYTES
    let w = wanted.words[2u * at];
    let v = wanted.words[2u * at + 1u];
    let lower = octet_dot(w.xy, a, zero) + octet_dot(w.zw, b, zero);
    let upper = octet_dot(v.xy, c, zero_after) + octet_dot(v.zw, d, zero_after);
#else
    let w = wanted.words[at];
    let lower = octet_dot(w.x, a, zero) + octet_dot(w.y, b, zero);
    let upper = octet_dot(w.z, c, zero_after) + octet_dot(w.w, d, zero_after);
#endif
#if SIXTEENS
    sums[r] += total_of(lower) * f32(wanted.factors[2u * at]) + total_of(upper) * f32(wanted.factors[2u * at + 1u]);
#else
    sums[r] += total_of(lower + upper) * f32(wanted.factors[at]);
#endif
#if minima
#if SIXTEENS
    sums[r] += lower_sum * f32(wanted.minima[2u * at]) + upper_sum * f32(wanted.minima[2u * at + 1u]);
#else
    sums[r] += (lower_sum + upper_sum) * f32(wanted.minima[at]);
#endif
#endif
#end
#end
