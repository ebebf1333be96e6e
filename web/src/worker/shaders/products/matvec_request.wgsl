// The loads of weights in matvec_q4.wgsl, made before they are used.

// A thread's loads of a tile's weights: row r (the rows of weights_up follow) and step s are at r * STEPS + s.
struct Request {
  words: array<vec4<u32>, WORDS * LOADS>,
  factors: array<element, SCALES * LOADS>,
#if zeros
  zeros: array<u32, LOADS>, // the words that contain them
#endif
#if minima
  minima: array<element, SCALES * LOADS>,
#endif
}

// The first block of a run in a row.
fn block_of(run: u32) -> u32 {
  return run * 32u / BLOCK;
}

fn request(tile: u32, team: u32, member: u32) -> Request {
  var wanted: Request;
#repeat r ROWS
#repeat s STEPS
  let row = min(tile * TILE + team * ROWS + r, N - 1u);
  let run = min(member + s * SPAN, RUNS - 1u);
  let block = block_of(run);
  let at = r * STEPS + s;
  wanted.words[WORDS * at] = weights[WORDS * (row * ROOM + run)];
  wanted.factors[SCALES * at] = scales[row * BLOCKS + block];
#if BYTES
  wanted.words[WORDS * at + 1u] = weights[WORDS * (row * ROOM + run) + 1u];
#endif
#if SIXTEENS
  wanted.factors[SCALES * at + 1u] = scales[row * BLOCKS + block + 1u];
#endif
#if minima
  wanted.minima[SCALES * at] = minima[block * N + row];
#if SIXTEENS
  wanted.minima[SCALES * at + 1u] = minima[(block + 1u) * N + row];
#endif
#endif
#if zeros
  wanted.zeros[at] = zeros[zero_of(row, block) / (32u / BITS)];
#endif
#if weights_up
  let up = (ROWS + r) * STEPS + s;
  wanted.words[WORDS * up] = weights_up[WORDS * (row * ROOM + run)];
  wanted.factors[SCALES * up] = scales_up[row * BLOCKS + block];
#if BYTES
  wanted.words[WORDS * up + 1u] = weights_up[WORDS * (row * ROOM + run) + 1u];
#endif
#if SIXTEENS
  wanted.factors[SCALES * up + 1u] = scales_up[row * BLOCKS + block + 1u];
#endif
#if minima
  wanted.minima[SCALES * up] = minima_up[block * N + row];
#if SIXTEENS
  wanted.minima[SCALES * up + 1u] = minima_up[(block + 1u) * N + row];
#endif
#endif
#if zeros
  wanted.zeros[up] = zeros_up[zero_of(row, block) / (32u / BITS)];
#endif
#endif
#end
#end
  return wanted;
}
