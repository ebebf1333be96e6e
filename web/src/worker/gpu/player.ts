// Plays a tape: the operations Python kept of a recording, encoded into command buffers without ORT.

import { EngineError } from "../../wire/errors";
import type { BufferPart, WatchedDevice } from "./device";
import type { FusedKernels } from "./fused";
import type { RecordingObjects } from "./recorder";

/**
 * One played operation, by ids of one recording. A `table` op looks up its workgroup counts by sequence length;
 * `kernel` and `kernel table` are fused kernels of the tape's, by number.
 */
export type PlayedOp =
  | ["dispatch", number, number[], number, number, number]
  | ["indirect", number, number[], number, number]
  | ["table", number, number[], number]
  | ["kernel", number, number, number, number]
  | ["kernel table", number, number]
  | ["copy", number, number, number, number, number]
  | ["clear", number, number, number];

type Counts = readonly [x: number, y: number, z: number];
type Bound = { pipeline: GPUComputePipeline; groups: GPUBindGroup[] };
export type DispatchOp =
  | ({ kind: "dispatch"; counts: Counts } & Bound)
  | ({ kind: "indirect"; buffer: GPUBuffer; offset: number } & Bound)
  | ({ kind: "table"; table: number } & Bound);
type TransferOp =
  | { kind: "copy"; source: GPUBuffer; from: number; target: GPUBuffer; to: number; size: number }
  | { kind: "clear"; buffer: GPUBuffer; offset: number; size: number };
type Op = DispatchOp | TransferOp;

/** One command encoder with at most one open compute pass. */
export class StepEncoder {
  readonly encoder: GPUCommandEncoder;
  private open: GPUComputePassEncoder | null = null;

  /** `describe` says how each pass is opened. */
  constructor(
    watched: WatchedDevice,
    private readonly describe: (() => GPUComputePassDescriptor) | null = null,
  ) {
    this.encoder = watched.encoder();
  }

  get pass(): GPUComputePassEncoder {
    return (this.open ??= this.encoder.beginComputePass(this.describe?.()));
  }

  endPass(): void {
    this.open?.end();
    this.open = null;
  }

  finish(): GPUCommandBuffer {
    this.endPass();
    return this.encoder.finish();
  }
}

/** Workgroup counts by sequence length, past the longest those of it. The operations of a step ask for one length. */
class CountTable {
  private length = -1;
  private found: Counts = [0, 0, 0];

  constructor(private readonly counts: Uint32Array) {}

  at(length: number): Counts {
    if (length !== this.length) {
      const at = Math.min(3 * length, this.counts.length - 3);
      const [x, y, z] = this.counts.subarray(at, at + 3);
      this.found = [x!, y!, z!];
      this.length = length;
    }
    return this.found;
  }
}

export class Tape {
  private readonly ops: Op[];
  private readonly tables: CountTable[] = [];
  private ended: string | null = null;
  private readonly unwatch: (() => void)[] = [];

  /**
   * `written` are the buffers that others may write between replays (inputs, caches); a host write into any other
   * buffer, or the destruction of any buffer, ends the tape. `owned` are buffers of its own.
   */
  constructor(
    private readonly objects: RecordingObjects,
    private readonly played: PlayedOp[],
    written: ReadonlySet<number>,
    readonly fused: FusedKernels | null = null,
    private readonly owned: readonly GPUBuffer[] = [],
  ) {
    this.ops = played.map((op) => this.resolve(op));
    for (const [id, info] of objects.infos) {
      const destroyed = (): void =>
        this.end(`its buffer ${info.id} (${info.size} bytes) was destroyed with the session that owns it`);
      if (info.destroyed) destroyed();
      info.onDestroy.add(destroyed);
      this.unwatch.push(() => info.onDestroy.delete(destroyed));
      if (written.has(id)) continue;
      const overwritten = (): void => this.end(`its private buffer ${info.id} was written by somebody else`);
      info.onWrite.add(overwritten);
      this.unwatch.push(() => info.onWrite.delete(overwritten));
    }
  }

  /** Workgroup counts by sequence length for `table` ops: counts[3 * length + axis]. */
  addTable(counts: Uint32Array): void {
    this.tables.push(new CountTable(counts));
  }

  assertPlayable(): void {
    if (this.ended)
      throw new EngineError("ClosedError", `the tape can no longer be played: ${this.ended}; load the model again`);
  }

  close(): void {
    this.end("it was closed");
    this.fused?.destroy();
    for (const buffer of this.owned) buffer.destroy();
  }

  /** Indirect dispatches in a step. */
  get indirectCount(): number {
    return this.ops.filter((op) => op.kind === "indirect").length;
  }

  get operationCount(): number {
    return this.ops.length;
  }

  /** Operations that end a pass: copies and clears. */
  get breakCount(): number {
    return this.ops.filter((op) => op.kind === "copy" || op.kind === "clear").length;
  }

  /**
   * Encode one step; `length` is the number of valid positions the step sees (for `table` ops). `taps` are called outside
   * of any pass, after the operation of their number; -1 is before the first.
   */
  encode(step: StepEncoder, length: number, taps: ReadonlyMap<number, () => void> | null = null): void {
    let pipeline: GPUComputePipeline | null = null;
    let groups: GPUBindGroup[] = [];
    const interrupt = (action: () => void): void => {
      step.endPass();
      pipeline = null;
      groups = [];
      action();
    };
    for (let index = 0; index < this.ops.length; index++) {
      const op = this.ops[index]!;
      const tap = taps?.get(index - 1);
      if (tap) interrupt(tap);
      if (op.kind === "copy" || op.kind === "clear") {
        interrupt(() => transfer(step.encoder, op));
        continue;
      }
      const counts = this.countsOf(op, length);
      // A join of attention splits has no workgroups while there is one split: not even its bindings are sent.
      if (counts?.includes(0)) continue;
      const { pass } = step;
      if (op.pipeline !== pipeline) pass.setPipeline((pipeline = op.pipeline));
      for (let i = 0; i < op.groups.length; i++) {
        if (groups[i] !== op.groups[i]) pass.setBindGroup(i, op.groups[i]!);
      }
      groups = op.groups;
      dispatch(pass, op, counts);
    }
    const last = taps?.get(this.ops.length - 1);
    if (last) interrupt(last);
  }

  /** A recorded buffer by id, or the scratch of its fused kernels by number. */
  part(kind: "recorded" | "scratch", id: number): { buffer: GPUBuffer; offset: number } {
    if (kind === "recorded") return { buffer: found(this.objects.buffers.get(id), "buffer", id), offset: 0 };
    return found(this.fused?.scratchPart(id), "scratch buffer", id);
  }

  /** Have its fused kernels work in these parts of buffers, or in scratch of their own; see FusedKernels.giveScratch. */
  async giveScratch(parts: readonly BufferPart[] | null): Promise<void> {
    await this.fused?.giveScratch(parts, () => {
      this.played.forEach((op, index) => {
        if (op[0] === "kernel" || op[0] === "kernel table") this.ops[index] = this.resolve(op);
      });
    });
  }

  /** The same with each dispatch in a pass of its own; `before` is called outside of any pass. */
  encodeApart(step: StepEncoder, length: number, before: (op: DispatchOp, index: number) => void): void {
    this.ops.forEach((op, index) => {
      step.endPass();
      if (op.kind === "copy" || op.kind === "clear") return transfer(step.encoder, op);
      before(op, index);
      const { pass } = step;
      pass.setPipeline(op.pipeline);
      op.groups.forEach((group, i) => pass.setBindGroup(i, group));
      dispatch(pass, op, this.countsOf(op, length));
    });
    step.endPass();
  }

  /** Workgroups of a step over `length` positions; null where a buffer holds them. */
  private countsOf(op: DispatchOp, length: number): Counts | null {
    if (op.kind === "dispatch") return op.counts;
    return op.kind === "indirect" ? null : this.tables[op.table]!.at(length);
  }

  private end(reason: string): void {
    this.ended ??= reason;
    for (const stop of this.unwatch.splice(0)) stop();
  }

  private resolve(op: PlayedOp): Op {
    const buffer = (id: number): GPUBuffer => found(this.objects.buffers.get(id), "buffer", id);
    const bound = (pipeline: number, groups: number[]): Bound => ({
      pipeline: found(this.objects.pipelines.get(pipeline), "pipeline", pipeline),
      groups: groups.map((id) => found(this.objects.bindGroups.get(id), "bind group", id)),
    });
    const fused = (index: number): Bound => {
      const { pipeline, group } = found(this.fused?.kernels[index], "fused kernel", index);
      return { pipeline, groups: [group] };
    };
    switch (op[0]) {
      case "dispatch":
        return { kind: "dispatch", ...bound(op[1], op[2]), counts: [op[3], op[4], op[5]] };
      case "indirect":
        return { kind: "indirect", ...bound(op[1], op[2]), buffer: buffer(op[3]), offset: op[4] };
      case "table":
        return { kind: "table", ...bound(op[1], op[2]), table: op[3] };
      case "kernel":
        return { kind: "dispatch", ...fused(op[1]), counts: [op[2], op[3], op[4]] };
      case "kernel table":
        return { kind: "table", ...fused(op[1]), table: op[2] };
      case "copy":
        return { kind: "copy", source: buffer(op[1]), from: op[2], target: buffer(op[3]), to: op[4], size: op[5] };
      case "clear":
        return { kind: "clear", buffer: buffer(op[1]), offset: op[2], size: op[3] };
    }
  }
}

function dispatch(pass: GPUComputePassEncoder, op: DispatchOp, counts: Counts | null): void {
  if (counts) pass.dispatchWorkgroups(...counts);
  else if (op.kind === "indirect") pass.dispatchWorkgroupsIndirect(op.buffer, op.offset);
}

function transfer(encoder: GPUCommandEncoder, op: TransferOp): void {
  if (op.kind === "copy") encoder.copyBufferToBuffer(op.source, op.from, op.target, op.to, op.size);
  else encoder.clearBuffer(op.buffer, op.offset, op.size);
}

function found<T>(object: T | undefined, what: string, id: number): T {
  if (object === undefined) throw new EngineError("TapeError", `the tape names ${what} ${id}, which was not recorded`);
  return object;
}
