    // Part of main in matvec_q4.wgsl: `sums` of threads that share a row meet by shuffles, if SPLIT the rest in workgroup memory.
#repeat h HALVINGS
#repeat r SUMS
    sums[r] += subgroupShuffleXor(sums[r], WIDTH >> (h + 1u));
#end
#end
#if SPLIT
    if (member % WIDTH == 0u) {
#repeat r SUMS
      parts[turn + (team * SUMS + r) * PARTS + member / WIDTH] = sums[r];
#end
    }
    workgroupBarrier();
    if (writes) {
      let at = turn + (mine / ROWS * SUMS + mine % ROWS) * PARTS;
      for (var i = 0u; i < PARTS; i++) {
        sum += parts[at + i];
        sum_up += parts[at + (SUMS - ROWS) * PARTS + i];
      }
    }
#else
#repeat r ROWS
    sum = select(sum, sums[r], member == r);
    sum_up = select(sum_up, sums[SUMS - ROWS + r], member == r);
#end
#endif
