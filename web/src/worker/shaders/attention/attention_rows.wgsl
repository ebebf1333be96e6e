// New rows of the caches, a chunk by one thread: for kernels in which the threads of a head pass nothing to each other.

// One over the root mean square of the head that begins at chunk `at`; 1 without norms.
fn inverse_size(at: u32) -> f32 {
#if q_gamma
  var sum = 0.0;
  for (var c = 0u; c < CHUNKS; c++) {
    let part = unpacked(qkv[at + c]);
    sum += product(part, part);
  }
  return inverseSqrt(sum / f32(HEAD) + EPSILON);
#else
  return 1.0;
#endif
}

#if !WRITTEN
// A chunk of the key that begins at chunk `at` of qkv, normalised and rotated to a position.
fn key_of(at: u32, chunk: u32, position: u32) -> Values {
  let turn = k_rotation(chunk, rotation(chunk, position));
  let key = combined(unpacked(qkv[at + chunk]), turn[0], opposite(qkv[at + partner(chunk)]), turn[1]);
  return key * inverse_size(at);
}

// A chunk of the value that begins at chunk `at`, normalised.
fn value_of(at: u32, chunk: u32) -> Values {
  let value = unpacked(qkv[at + chunk]);
#if v_gamma
  return scaled(value, unpacked(v_gamma[chunk])) * inverse_size(at);
#else
  return value;
#endif
}

#if QUANTIZED
// The scales of a key and of a value.
fn scales_of(keys_at: u32, values_at: u32, position: u32) -> vec2<f32> {
  var most = vec2<f32>();
  for (var c = 0u; c < CHUNKS; c++) {
    most = max(most, vec2<f32>(largest_of(key_of(keys_at, c, position)), largest_of(value_of(values_at, c))));
  }
  return most / 127.0;
}
#endif
#endif
