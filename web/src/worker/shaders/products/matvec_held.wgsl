  // Part of main in matvec_q4.wgsl: each thread has its part of x in registers, normalised.
#if PREPARED
  var held = prepared(thread, group.x == 0u && team == 0u);
#else
#if partials
  let splits = count_splits();
  weigh_splits(thread, splits);
#endif
  var held = array<Octet, 4u * STEPS>();
#if gamma
  var gains: array<Octet, 4u * STEPS>;
#endif
#repeat s STEPS
#repeat j 4
  let at = 4u * (member + s * SPAN) + j;
#if RAGGED
  if (at < OCTETS) {
#else
  if ((s + 1u) * SPAN <= RUNS || at < OCTETS) {
#endif
#if partials
    held[4u * s + j] = joined(at, splits);
    if (group.x == 0u && team == 0u) {
      attended[at] = held[4u * s + j];
    }
#else
    held[4u * s + j] = x[at];
#endif
  }
#if gamma
  gains[4u * s + j] = gamma[min(at, OCTETS - 1u)];
#endif
#end
#end
#if gamma
  var squared = 0.0;
#repeat i STEPS
  squared += square(held[4u * i]) + square(held[4u * i + 1u]);
  squared += square(held[4u * i + 2u]) + square(held[4u * i + 3u]);
#end
#if SPLIT
  squared = workgroup_sum(thread, squared, 0u) / f32(TEAMS);
#else
#repeat h HALVINGS
  squared += subgroupShuffleXor(squared, WIDTH >> (h + 1u));
#end
#endif
  let inverse = inverseSqrt(squared / f32(K) + EPSILON);
#repeat s STEPS
#repeat j 4
  held[4u * s + j] = scaled(held[4u * s + j], gains[4u * s + j], inverse);
#end
#end
#endif
#endif
#repeat s STEPS
#repeat j 4
  held[4u * s + j] = dealt(held[4u * s + j]);
#end
#end
