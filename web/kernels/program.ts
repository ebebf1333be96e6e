// Runs a program: operations of 24 words each. capstan.device.wasm.cpu_program plans them.
//
// The last words of an operation say how threads share it. 20: the columns of a part of a row. 21: a Split. 22: threads
// wait for one another after it, with 1 where a run has one token, with 2 where it has several.

import { barrier } from "./barrier";
import { add, attend, gate, norm, quantize, quantizedBytes, rotate, scale } from "./operations";
import { lookUp, products } from "./products";

const BYTES: usize = 96;

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
  Scale,
}

enum Split {
  /** Each row is one thread's. */
  Rows,
  /** Rows, and columns if there is a single row. */
  RowsOrColumns,
  /** Neighbouring parts of all rows are one thread's. */
  Columns,
  /** Parts of rows are dealt out one by one. */
  Parts,
}

/**
 * Run `count` operations at `program` on `rows` tokens after `past` positions of the cache at `cache`, which has `room`
 * positions, as thread number `thread`; logits are those of the last `kept` tokens. `scores` has `scoreBytes` for each
 * thread. Returns how often it waited for other threads.
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
): i32 {
  const several = rows == 1 ? 1 : 2;
  let waits = 0;
  for (let i = 0; i < count; i++) {
    const at = program + <usize>i * BYTES;
    const kind = load<i32>(at);
    const all = load<i32>(at, 4) ? kept : rows;
    const unit = load<i32>(at, 80);
    const split = load<i32>(at, 84);
    const own = scores + <usize>thread * scoreBytes;
    if (kind == Kind.Attend) attended(at, all, past, cache, room, own, thread, threads);
    else if (kind == Kind.Rotate) rotated(at, all, past, cache, room, own, thread, threads);
    else {
      const width = kind == Kind.Product ? load<i32>(at, 20) << 3 : load<i32>(at, 16);
      if (split == Split.Columns || (split == Split.RowsOrColumns && all == 1)) {
        const parts = <i64>(width / unit);
        const begin = unit * <i32>((parts * thread) / threads);
        const end = unit * <i32>((parts * (thread + 1)) / threads);
        if (kind == Kind.Product) multiplied(at, all, begin, end);
        else for (let row = 0; row < all; row++) computed(kind, at, row, begin, end, rows - all);
      } else if (split == Split.Parts) {
        const parts = width / unit;
        for (let each = thread; each < all * parts; each += threads) {
          const begin = (each % parts) * unit;
          computed(kind, at, each / parts, begin, begin + unit, rows - all);
        }
      } else for (let row = thread; row < all; row += threads) computed(kind, at, row, 0, width, rows - all);
    }
    if (load<i32>(at, 88) & several) {
      barrier(threads);
      waits++;
    }
  }
  return waits;
}

/** Some columns of a product. */
function multiplied(at: usize, rows: i32, begin: i32, end: i32): void {
  const width = load<i32>(at, 16);
  products(
    load<i32>(at, 24),
    load<u32>(at, 28),
    load<u32>(at, 8),
    quantizedBytes(width),
    load<u32>(at, 12),
    (<usize>load<u32>(at, 20)) << 5,
    width,
    begin >> 3,
    end >> 3,
    rows,
  );
}

/** Some columns of a row of the other operations; a kept row is `before` rows further on among all. */
function computed(kind: i32, at: usize, row: i32, begin: i32, end: i32, before: i32): void {
  const width = load<i32>(at, 16);
  const bytes = (<usize>width) << 2;
  const first = (<usize>begin) << 2;
  const count = end - begin;
  const x = <usize>load<u32>(at, 8) + <usize>row * bytes;
  const y = <usize>load<u32>(at, 12) + <usize>row * bytes;
  const other = <usize>load<u32>(at, 28);
  if (kind == Kind.LookUp) {
    const id = load<i32>(<usize>load<u32>(at, 8) + ((<usize>row) << 2));
    const form = load<i32>(at, 24);
    if (form < 0) memory.copy(y, other + <usize>id * bytes, bytes);
    else lookUp(form, other, id, y, width);
  } else if (kind == Kind.Norm) {
    const skip = <usize>load<u32>(at, 20);
    const sum = <usize>load<u32>(at, 24) + <usize>row * bytes;
    norm(x, skip ? skip + <usize>row * bytes : 0, other, y, sum, width, load<f32>(at, 32), begin, end);
  } else if (kind == Kind.Quantize) {
    quantize(x, <usize>load<u32>(at, 12) + <usize>row * quantizedBytes(width), width, begin, end);
  } else if (kind == Kind.Bias) {
    add(x + first, other + first, count);
  } else if (kind == Kind.Gate) {
    gate(x + first, other + <usize>row * bytes + first, y + first, count, load<i32>(at, 24));
  } else if (kind == Kind.Scale) {
    scale(x + first, y + first, count, load<f32>(at, 32));
  } else if (kind == Kind.Keep) {
    memory.copy(y, x + <usize>before * bytes, bytes);
  }
}

function attended(
  at: usize,
  rows: i32,
  past: i32,
  cache: usize,
  room: i32,
  scores: usize,
  thread: i32,
  threads: i32,
): void {
  const x = <usize>load<u32>(at, 8);
  const y = <usize>load<u32>(at, 12);
  const width = load<i32>(at, 16);
  const heads = load<i32>(at, 20);
  const shared = heads / load<i32>(at, 24);
  const window = load<i32>(at, 28);
  const scale = load<f32>(at, 32);
  const keys = cache + <usize>load<u32>(at, 36) * room;
  const values = cache + <usize>load<u32>(at, 40) * room;
  const xRow = <usize>load<u32>(at, 44);
  const head = (<usize>width) << 2;
  for (let each = thread, total = rows * heads; each < total; each += threads) {
    const row = each / heads;
    const h = each % heads;
    const end = past + row + 1;
    const begin = window > 0 ? max(0, end - window) : 0;
    const place = <usize>(h / shared) * room * head;
    const from = x + <usize>row * xRow + <usize>h * head;
    attend(from, keys + place, values + place, y + <usize>each * head, width, begin, end, scale, scores);
  }
}

/**
 * Rotate heads of queries in place; write keys, rotated, and values to the cache. Heads get their norms first, if they have
 * any. Every thread writes all keys and values of a single token, the same bytes, so that it need not wait for others; `own`
 * is a thread's room for one head.
 */
function rotated(
  at: usize,
  rows: i32,
  past: i32,
  cache: usize,
  room: i32,
  own: usize,
  thread: i32,
  threads: i32,
): void {
  const size = load<i32>(at, 16);
  const heads = load<i32>(at, 20);
  const shared = load<i32>(at, 24);
  const queryNorm = <usize>load<u32>(at, 68);
  const keyNorm = <usize>load<u32>(at, 72);
  const epsilon = load<f32>(at, 76);
  const head = (<usize>size) << 2;
  for (let each = thread; each < rows * heads; each += threads) {
    const row = each / heads;
    const q = <usize>load<u32>(at, 8) + <usize>row * <usize>load<u32>(at, 12) + <usize>(each % heads) * head;
    if (queryNorm) norm(q, 0, queryNorm, q, 0, size, epsilon, 0, size);
    turned(at, q, q, size, past + row);
  }
  const keys = cache + <usize>load<u32>(at, 36) * room;
  const values = cache + <usize>load<u32>(at, 40) * room;
  const single = rows == 1;
  for (let each = single ? 0 : thread; each < rows * shared; each += single ? 1 : threads) {
    const row = <usize>(each / shared);
    const h = <usize>(each % shared);
    const to = (h * room + past + row) * head;
    let k = <usize>load<u32>(at, 52) + row * <usize>load<u32>(at, 60) + h * head;
    if (keyNorm) {
      norm(k, 0, keyNorm, own, 0, size, epsilon, 0, size);
      k = own;
    }
    turned(at, k, keys + to, size, past + <i32>row);
    memory.copy(values + to, <usize>load<u32>(at, 56) + row * <usize>load<u32>(at, 64) + h * head, head);
  }
}

/** Write a head to y as it is rotated at a position. */
function turned(at: usize, x: usize, y: usize, size: i32, position: i32): void {
  const half = load<i32>(at, 28);
  const angles = <usize>position * <usize>(half << 2);
  rotate(x, y, size, half, load<u32>(at, 44) + angles, load<u32>(at, 48) + angles, load<i32>(at, 32));
}
