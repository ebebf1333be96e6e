    // Part of main in matvec_q4.wgsl: `sums` of threads that share a row meet in workgroup memory.
#repeat r SUMS
    parts[turn + (team * SUMS + r) * PARTS + member] = sums[r];
#end
    workgroupBarrier();
    // Quarters of each sum, then the sums.
    for (var i = thread; i < 4u * TEAMS * SUMS; i += WORKGROUP) {
      let at = turn + i / 4u * PARTS + i % 4u;
      var quarter = parts[at];
      for (var p = 4u; p < PARTS; p += 4u) {
        quarter += parts[at + p];
      }
      parts[at] = quarter;
    }
    workgroupBarrier();
    if (writes) {
      let at = turn + (mine / ROWS * SUMS + mine % ROWS) * PARTS;
      let above = at + (SUMS - ROWS) * PARTS;
      sum = (parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]);
      sum_up = (parts[above] + parts[above + 1u]) + (parts[above + 2u] + parts[above + 3u]);
    }
