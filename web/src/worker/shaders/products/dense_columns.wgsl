// Rows of a dense matrix by 16 bytes, as the kernels of dense products load them, of float32 or, with HALF, float16.

// Four elements of a row of x, 16 bytes of a row of W, and the sums of as many columns.
#if HALF
alias Four = vec2<u32>;
alias Row = vec4<u32>;
alias Sums = mat2x4<f32>;
#else
alias Four = vec4<f32>;
alias Row = vec4<f32>;
alias Sums = vec4<f32>;
#endif

#if HALF
fn four(words: Four) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn wide(row: Row) -> Sums {
  return Sums(four(row.xy), four(row.zw));
}

fn column_sum(sums: Sums, j: u32) -> f32 {
  return sums[j / 4u][j % 4u];
}
#else
fn four(values: Four) -> vec4<f32> {
  return values;
}

fn wide(row: Row) -> Sums {
  return row;
}

fn column_sum(sums: Sums, j: u32) -> f32 {
  return sums[j];
}
#endif

#if SUBGROUPS
fn shuffled(sums: Sums, mask: u32) -> Sums {
#if HALF
  return Sums(subgroupShuffleXor(sums[0], mask), subgroupShuffleXor(sums[1], mask));
#else
  return subgroupShuffleXor(sums, mask);
#endif
}
#endif
