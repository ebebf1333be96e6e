// Integers of 4 bits, or 8 if BYTES, as float16, two at a time, and elements of x in the order in which they unpack.

// Eight float16, two of a word each: (0, 4), (1, 5), (2, 6), (3, 7) of nibbles, (0, 2), (1, 3), (4, 6), (5, 7) of bytes.
fn dealt(o: vec4<u32>) -> vec4<u32> {
#if BYTES
  return vec4<u32>((o.x & 0xffffu) | (o.y << 16u), (o.x >> 16u) | (o.y & 0xffff0000u), //
                   (o.z & 0xffffu) | (o.w << 16u), (o.z >> 16u) | (o.w & 0xffff0000u));
#else
  return vec4<u32>((o.x & 0xffffu) | (o.z << 16u), (o.x >> 16u) | (o.z & 0xffff0000u), //
                   (o.y & 0xffffu) | (o.w << 16u), (o.y >> 16u) | (o.w & 0xffff0000u));
#endif
}

// 1024 + q of the integers at bits 0 and 16: 0x6400 | q is that float16.
fn pair_of(word: u32) -> vec2<f16> {
#if BYTES
  return halves_of((word & 0x00ff00ffu) | 0x64006400u);
#else
  return halves_of((word & 0x000f000fu) | 0x64006400u);
#endif
}
