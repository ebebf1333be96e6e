// Turns each span step into copies and clears of the command encoder if those suffice, else into dispatches.

import type { SpanKernel } from "./span_pipelines";

export type CastType = "float32" | "float16" | "int32" | "int64" | "uint32";
export type IndexType = "int64" | "int32";

/** One step; buffers are GPUBuffers, offsets and sizes bytes. py_src/capstan/memory/copies.py says which bytes. */
export type SpanStep =
  /** The source is as if read before anything is written, also in the same buffer. */
  | ["copy", source: GPUBuffer, sourceOffset: number, destination: GPUBuffer, offset: number, bytes: number]
  /** `count` pieces of `bytes` bytes, each a stride after the start of the one before; the two do not overlap. */
  | [
      "strided",
      source: GPUBuffer,
      sourceOffset: number,
      sourceStride: number,
      destination: GPUBuffer,
      offset: number,
      stride: number,
      bytes: number,
      count: number,
    ]
  | ["zero", buffer: GPUBuffer, offset: number, bytes: number]
  | [
      "cast",
      source: GPUBuffer,
      sourceOffset: number,
      sourceType: CastType,
      destination: GPUBuffer,
      offset: number,
      destinationType: CastType,
      count: number,
    ]
  /** Row r of a mask [batch, capacity] had its first old[r] elements one; make it new[r]. */
  | ["mask", buffer: GPUBuffer, offset: number, type: IndexType, capacity: number, old: number[], new_: number[]]
  /** Row r of [batch, count] becomes starts[r], starts[r] + 1, ... */
  | ["positions", buffer: GPUBuffer, offset: number, type: IndexType, starts: number[], count: number];

/** A stand-in for the temporary buffer; its size is known once all steps are planned. */
export const TEMPORARY = Symbol("temporary buffer");

export interface Operand {
  buffer: GPUBuffer | typeof TEMPORARY;
  offset: number;
  bytes: number;
}

export interface SpanDispatch {
  kind: "dispatch";
  kernel: SpanKernel;
  destination: Operand;
  source?: Operand | undefined;
  /** Params.stride, .more and .rows in shaders/memory/spans.wgsl. */
  stride: number;
  more: number[];
  rows: number[];
  workgroups: [x: number, y: number, z: number];
}

export type Command =
  | { kind: "copy"; source: Operand; destination: Operand; bytes: number }
  | { kind: "clear"; destination: Operand; bytes: number }
  | SpanDispatch;

export interface SpanPlan {
  commands: Command[];
  /** Bytes of the temporary buffer. */
  temporary: number;
}

export interface PlanLimits {
  /** Most bytes of an operand of a dispatch. */
  piece: number;
  /** Most bytes that go through the temporary buffer at once. */
  bounce: number;
  /** A buffer of 16 zeros. */
  nothing: () => GPUBuffer;
}

/** Words of Params in shaders/memory/spans.wgsl: 8, and two for each row. */
export const SLOT_WORDS = 64;
const MOST_ROWS = 28;
const WORKGROUP = 64;
/** Workgroups in a row of workgroups. */
const ROW = 32768;
const NOTHING_BYTES = 16;

/** The codes of cast.wgsl, and bytes of an element. */
const CAST_TYPES: Record<CastType, [code: number, bytes: number]> = {
  float32: [0, 4],
  float16: [1, 2],
  int32: [2, 4],
  int64: [3, 8],
  uint32: [4, 4],
};
const INDEX_BYTES: Record<IndexType, number> = { int64: 8, int32: 4 };

/** Commands that do the steps in order. Throws RangeError for spans outside of their buffers and unknown types. */
export function planSteps(steps: SpanStep[], limits: PlanLimits): SpanPlan {
  const planner = new Planner(limits);
  for (const step of steps) {
    switch (step[0]) {
      case "copy":
        planner.transfer(operand(step[1], step[2], step[5]), operand(step[3], step[4], step[5]));
        break;
      case "strided":
        planner.strided(step);
        break;
      case "zero":
        planner.zero(operand(step[1], step[2], step[3]));
        break;
      case "cast":
        planner.cast(step);
        break;
      case "mask":
        planner.mask(step);
        break;
      case "positions":
        planner.positions(step);
        break;
      default:
        throw new RangeError(`there is no span step ${String((step as unknown[])[0])}`);
    }
  }
  return planner;
}

function operand(buffer: GPUBuffer, offset: number, bytes: number): Operand {
  if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(bytes) || Math.min(offset, bytes) < 0)
    throw new RangeError(`span step: it has ${bytes} bytes at ${offset}; both must be integers from 0`);
  if (offset + bytes > buffer.size)
    throw new RangeError(
      `span step: bytes ${offset} to ${offset + bytes} are not in ${buffer.label}, which has ${buffer.size}`,
    );
  return { buffer, offset, bytes };
}

function part({ buffer, offset }: Operand, from: number, bytes: number): Operand {
  return { buffer, offset: offset + from, bytes };
}

function aligned(...values: number[]): boolean {
  return values.every((value) => value % 4 === 0);
}

function known<K extends string, V>(table: Record<K, V>, key: K): V {
  if (!Object.hasOwn(table, key)) throw new RangeError(`span step: type ${key} is not ${Object.keys(table).join()}`);
  return table[key];
}

class Planner implements SpanPlan {
  readonly commands: Command[] = [];
  temporary = 0;

  constructor(private readonly limits: PlanLimits) {}

  /** Copy to a span of the same length, which may be in the same buffer. */
  transfer(source: Operand, destination: Operand): void {
    const bytes = source.bytes;
    const direct = bindable(source) || aligned(source.offset, destination.offset, bytes);
    if (source.buffer !== destination.buffer && direct) return this.copy(source, destination);
    // Towards higher offsets the last piece goes first, so that none overwrites what is yet to be read.
    const size = this.limits.bounce - (this.limits.bounce % 4);
    const starts = Array.from({ length: Math.ceil(bytes / size) }, (_, i) => i * size);
    if (destination.offset > source.offset) starts.reverse();
    for (const start of starts) {
      const length = Math.min(size, bytes - start);
      this.copy(this.stash(part(source, start, length)), part(destination, start, length));
    }
  }

  strided(step: Extract<SpanStep, ["strided", ...unknown[]]>): void {
    const [, source, sourceOffset, sourceStride, destination, offset, stride, bytes, count] = step;
    for (let i = 0; i < count; i++)
      this.transfer(
        operand(source, sourceOffset + i * sourceStride, bytes),
        operand(destination, offset + i * stride, bytes),
      );
  }

  zero(destination: Operand): void {
    const { offset, bytes } = destination;
    const head = bytes <= NOTHING_BYTES ? bytes : -offset & 3;
    const tail = (bytes - head) % 4;
    const middle = bytes - head - tail;
    if (bytes > 0 && aligned(offset, bytes)) {
      this.commands.push({ kind: "clear", destination, bytes });
      return;
    }
    if (middle > 0) this.commands.push({ kind: "clear", destination: part(destination, head, middle), bytes: middle });
    for (const [from, length] of [
      [0, head],
      [bytes - tail, tail],
    ] as const) {
      const zeros = { buffer: this.limits.nothing(), offset: 0, bytes: length };
      if (length > 0) this.copy(zeros, part(destination, from, length));
    }
  }

  cast([, from, fromOffset, fromType, to, toOffset, toType, count]: Extract<SpanStep, ["cast", ...unknown[]]>): void {
    const [sourceCode, sourceBytes] = known(CAST_TYPES, fromType);
    const [destinationCode, destinationBytes] = known(CAST_TYPES, toType);
    let source = operand(from, fromOffset, count * sourceBytes);
    const destination = operand(to, toOffset, count * destinationBytes);
    if (count === 0) return;
    if (from === to || !bindable(source)) source = this.stash(source);
    const most = Math.floor(this.limits.piece / 8);
    for (let done = 0; done < count; done += most) {
      const now = Math.min(most, count - done);
      this.dispatch(
        "cast",
        part(destination, done * destinationBytes, now * destinationBytes),
        part(source, done * sourceBytes, now * sourceBytes),
        [sourceCode, destinationCode, sourceBytes, destinationBytes],
      );
    }
  }

  mask([, buffer, offset, type, capacity, old, new_]: Extract<SpanStep, ["mask", ...unknown[]]>): void {
    const size = known(INDEX_BYTES, type);
    const all = operand(buffer, offset, old.length * capacity * size);
    const most = Math.floor(this.limits.piece / size);
    const changes: { at: number; count: number; value: number }[] = [];
    old.forEach((before, row) => {
      const after = new_[row]!;
      if (!(Math.max(before, after) <= capacity && Math.min(before, after) >= 0))
        throw new RangeError(`span step: a mask row changes from ${before} to ${after}; it holds ${capacity}`);
      const end = Math.max(before, after);
      for (let from = Math.min(before, after); from < end; from += most)
        changes.push({ at: row * capacity + from, count: Math.min(most, end - from), value: after > before ? 1 : 0 });
    });
    // Changes that touch one another can share a word, unless elements are aligned: each then has its own dispatch.
    let group: typeof changes = [];
    const flush = (): void => {
      if (group.length === 0) return;
      const start = group[0]!.at;
      const last = group.at(-1)!;
      const bytes = (last.at + last.count - start) * size;
      const longest = Math.max(...group.map(({ count }) => count)) * size;
      const rows = group.flatMap(({ at, count, value }) => [(at - start) * size, 2 * count + value]);
      this.dispatch("mask", part(all, start * size, bytes), undefined, [size], rows, longest);
      group = [];
    };
    for (const change of changes) {
      const first = group[0];
      const end = change.at + change.count;
      const touches = !aligned(offset) && first && group.at(-1)!.at + group.at(-1)!.count === change.at;
      if (touches || group.length === MOST_ROWS || (first && (end - first.at) * size > this.limits.piece)) flush();
      group.push(change);
    }
    flush();
  }

  positions([, buffer, offset, type, starts, count]: Extract<SpanStep, ["positions", ...unknown[]]>): void {
    const size = known(INDEX_BYTES, type);
    const all = operand(buffer, offset, starts.length * count * size);
    if (count === 0) return;
    const write = (at: number, rows: number[], columns: number): void => {
      const words = rows.flatMap((start) => {
        if (!Number.isSafeInteger(start)) throw new RangeError(`span step: position ${start} is not exact`);
        return [start, Math.floor(start / 2 ** 32)];
      });
      this.dispatch("positions", part(all, at * size, rows.length * columns * size), undefined, [size, columns], words);
    };
    const most = Math.floor(this.limits.piece / size);
    const rows = Math.min(MOST_ROWS, Math.floor(most / count));
    if (rows > 0) {
      for (let row = 0; row < starts.length; row += rows) write(row * count, starts.slice(row, row + rows), count);
      return;
    }
    starts.forEach((start, row) => {
      for (let from = 0; from < count; from += most)
        write(row * count + from, [start + from], Math.min(most, count - from));
    });
  }

  /** Copy to another buffer. */
  private copy(source: Operand, destination: Operand): void {
    const bytes = source.bytes;
    if (bytes > 0 && aligned(source.offset, destination.offset, bytes)) {
      this.commands.push({ kind: "copy", source, destination, bytes });
      return;
    }
    for (let done = 0; done < bytes; done += this.limits.piece) {
      const now = Math.min(this.limits.piece, bytes - done);
      this.dispatch("bytes", part(destination, done, now), part(source, done, now), []);
    }
  }

  /** Copy the words around a span to the start of the temporary buffer; what was there before is used up by then. */
  private stash({ buffer, offset, bytes }: Operand): Operand {
    const skip = offset % 4;
    const size = Math.ceil((skip + bytes) / 4) * 4;
    this.temporary = Math.max(this.temporary, size);
    this.commands.push({
      kind: "copy",
      source: { buffer, offset: offset - skip, bytes: size },
      destination: { buffer: TEMPORARY, offset: 0, bytes: size },
      bytes: size,
    });
    return { buffer: TEMPORARY, offset: skip, bytes };
  }

  private dispatch(
    kernel: SpanKernel,
    destination: Operand,
    source: Operand | undefined,
    more: number[],
    rows: number[] = [],
    longest?: number,
  ): void {
    // A span of n bytes touches at most this many words.
    const words = Math.floor(((longest ?? destination.bytes) + 6) / 4);
    const workgroups = Math.ceil(words / WORKGROUP);
    const x = Math.min(workgroups, ROW);
    this.commands.push({
      kind: "dispatch",
      kernel,
      destination,
      source,
      stride: x * WORKGROUP,
      more,
      rows,
      workgroups: [x, Math.ceil(workgroups / x), longest === undefined ? 1 : rows.length / 2],
    });
  }
}

/** Whether kernels can read it. */
function bindable({ buffer }: Operand): boolean {
  return buffer === TEMPORARY || (buffer.usage & GPUBufferUsage.STORAGE) !== 0;
}
