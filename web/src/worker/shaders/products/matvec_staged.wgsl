  // Part of main in matvec_q4.wgsl: x goes through workgroup memory, normalised, read once and in order.
#if PREPARED
  var own = prepared(thread, group.x == 0u);
#else
#if partials
  let splits = count_splits();
  weigh_splits(thread, splits);
#endif
  var own = array<Octet, OWN>();
#if gamma
  var gains = array<Octet, OWN>();
#endif
#repeat i OWN
  let at = thread + i * WORKGROUP;
  if ((i + 1u) * WORKGROUP <= OCTETS || at < OCTETS) {
#if partials
    own[i] = joined(at, splits);
    if (group.x == 0u) {
      attended[at] = own[i];
    }
#else
    own[i] = x[at];
#endif
#if gamma
    gains[i] = gamma[at];
#endif
  }
#end
#if gamma
  var squared = 0.0;
#repeat i OWN
  squared += square(own[i]);
#end
  let inverse = inverseSqrt(workgroup_sum(thread, squared, 0u) / f32(K) + EPSILON);
#repeat i OWN
  own[i] = scaled(own[i], gains[i], inverse);
#end
#endif
#endif
#repeat i OWN
  let at = thread + i * WORKGROUP;
  if ((i + 1u) * WORKGROUP <= 4u * STEPS * SPAN || at < 4u * STEPS * SPAN) {
    staged[at % 4u * STRIDE + at / 4u] = dealt(own[i]);
  }
#end
  workgroupBarrier();
