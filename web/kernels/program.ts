// Runs a program: operations of 20 words each. capstan.device.wasm.cpu_program plans them.

import { barrier } from "./barrier";
import { add, attend, gate, norm, quantize, quantizedBytes, rotate } from "./operations";
import { lookUp, products } from "./products";

const BYTES: usize = 80;

enum Kind {
  LookUp,
  Norm,
  Quantize,
  Product,
  Bias,
  Rotate,
  Attend,
  Gate,
  Keep,
}

/**
 * Run `count` operations at `program` on `rows` tokens after `past` positions of the cache at `cache`, which has `room`
 * positions, as thread number `thread`; logits are those of the last `kept` tokens. `scores` has `scoreBytes` for each
 * thread.
 */
export function run(
  program: usize,
  count: i32,
  rows: i32,
  past: i32,
  kept: i32,
  cache: usize,
  room: i32,
  scores: usize,
  scoreBytes: usize,
  thread: i32,
  threads: i32,
): void {
  for (let i = 0; i < count; i++) {
    const at = program + <usize>i * BYTES;
    const kind = load<i32>(at);
    const all = load<i32>(at, 4) ? kept : rows;
    const x = <usize>load<u32>(at, 8);
    const y = <usize>load<u32>(at, 12);
    const width = load<i32>(at, 16);
    if (kind == Kind.Product) {
      const groups = load<i32>(at, 20);
      const form = load<i32>(at, 24);
      const w = <usize>load<u32>(at, 28);
      const begin = <i32>((<i64>groups * thread) / threads);
      const end = <i32>((<i64>groups * (thread + 1)) / threads);
      products(form, w, x, quantizedBytes(width), y, (<usize>groups) << 5, width, begin, end, all);
    } else if (kind == Kind.Attend) {
      const heads = load<i32>(at, 20);
      const shared = heads / load<i32>(at, 24);
      const window = load<i32>(at, 28);
      const scale = load<f32>(at, 32);
      const keys = cache + <usize>load<u32>(at, 36) * room;
      const values = cache + <usize>load<u32>(at, 40) * room;
      const xRow = <usize>load<u32>(at, 44);
      const head = (<usize>width) << 2;
      for (let each = thread, total = all * heads; each < total; each += threads) {
        const row = each / heads;
        const h = each % heads;
        const end = past + row + 1;
        const begin = window > 0 ? max(0, end - window) : 0;
        const place = <usize>(h / shared) * room * head;
        attend(
          x + <usize>row * xRow + <usize>h * head,
          keys + place,
          values + place,
          y + (<usize>row * heads + h) * head,
          width,
          begin,
          end,
          scale,
          scores + <usize>thread * scoreBytes,
        );
      }
    } else {
      const row = (<usize>width) << 2;
      for (let each = thread; each < all; each += threads) {
        const r = <usize>each;
        if (kind == Kind.LookUp) {
          const id = load<i32>(x + (r << 2));
          const form = load<i32>(at, 24);
          const w = <usize>load<u32>(at, 28);
          if (form < 0) memory.copy(y + r * row, w + <usize>id * row, row);
          else lookUp(form, w, id, y + r * row, width);
        } else if (kind == Kind.Norm) {
          const skip = <usize>load<u32>(at, 20);
          const sum = <usize>load<u32>(at, 24);
          norm(
            x + r * row,
            skip ? skip + r * row : 0,
            <usize>load<u32>(at, 28),
            y + r * row,
            sum + r * row,
            width,
            load<f32>(at, 32),
          );
        } else if (kind == Kind.Quantize) {
          quantize(x + r * row, y + r * quantizedBytes(width), width);
        } else if (kind == Kind.Bias) {
          add(x + r * row, <usize>load<u32>(at, 28), width);
        } else if (kind == Kind.Gate) {
          gate(x + r * row, <usize>load<u32>(at, 28) + r * row, y + r * row, width);
        } else if (kind == Kind.Keep) {
          memory.copy(y + r * row, x + <usize>(rows - all + each) * row, row);
        } else if (kind == Kind.Rotate) {
          rotated(at, each, past, cache, room, width);
        }
      }
    }
    barrier(threads);
  }
}

/** Rotate the queries of a token in place; write its keys, rotated, and its values to the cache. */
function rotated(at: usize, row: i32, past: i32, cache: usize, room: i32, size: i32): void {
  const heads = <usize>load<u32>(at, 20);
  const shared = <usize>load<u32>(at, 24);
  const half = load<i32>(at, 28);
  const interleaved = load<i32>(at, 32);
  const keys = cache + <usize>load<u32>(at, 36) * room;
  const values = cache + <usize>load<u32>(at, 40) * room;
  const position = past + row;
  const angles = <usize>position * <usize>(half << 2);
  const cos = <usize>load<u32>(at, 44) + angles;
  const sin = <usize>load<u32>(at, 48) + angles;
  const head = (<usize>size) << 2;
  const q = <usize>load<u32>(at, 8) + <usize>row * <usize>load<u32>(at, 12);
  const k = <usize>load<u32>(at, 52) + <usize>row * <usize>load<u32>(at, 60);
  const v = <usize>load<u32>(at, 56) + <usize>row * <usize>load<u32>(at, 64);
  for (let h: usize = 0; h < heads; h++) rotate(q + h * head, q + h * head, size, half, cos, sin, interleaved);
  for (let h: usize = 0; h < shared; h++) {
    const to = (h * room + position) * head;
    rotate(k + h * head, keys + to, size, half, cos, sin, interleaved);
    memory.copy(values + to, v + h * head, head);
  }
}
