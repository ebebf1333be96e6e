// Records what a captured onnxruntime-web run asks of the device, without letting the device execute any of it.
//
// onnxruntime-web encodes a captured run twice: once while capturing, once replaying what it captured. Dispatches,
// copies, clears and submits are withheld (a dry capture), so neither half executes and no state is touched. Uploads by
// `writeBuffer` go through: they carry the uniforms that the recorded dispatches read. The recording is handed out as
// plain data over integer ids; the objects stay here.

import { EngineError } from "../../wire/errors";
import { Allocations } from "./allocations";
import type { BindGroupInfo, BufferInfo, PipelineInfo, Recorder, WatchedDevice } from "./device";
import { declaredBindings } from "./wgsl";

/** One operation, by ids. Python's capstan.tape reads these tuples. */
export type RecordedOp =
  | ["dispatch", number, number[], number, number, number]
  | ["indirect", number, number[], number, number]
  | ["copy", number, number, number, number, number]
  | ["clear", number, number, number]
  | ["write", number, number, string];

/** A recording as Python sees it. */
export interface RecordingData {
  ops: RecordedOp[];
  pipelines: Record<number, { label: string; code: string; bindings: [number, number, string, string][] }>;
  bind_groups: Record<number, [number, number, number, number][]>;
  buffers: Record<number, { size: number; usage: number; label: string }>;
}

/** The objects after the ids of a recording. */
export interface RecordingObjects {
  pipelines: Map<number, GPUComputePipeline>;
  bindGroups: Map<number, GPUBindGroup>;
  buffers: Map<number, GPUBuffer>;
  infos: Map<number, BufferInfo>;
  pipelineInfos: Map<number, PipelineInfo>;
  groupInfos: Map<number, BindGroupInfo>;
  /** The host's uploads, by buffer. */
  writes: Map<number, { offset: number; bytes: Uint8Array<ArrayBuffer> }[]>;
}

export class DryRecorder implements Recorder {
  readonly ops: RecordedOp[] = [];
  readonly objects: RecordingObjects = {
    pipelines: new Map(),
    bindGroups: new Map(),
    buffers: new Map(),
    infos: new Map(),
    pipelineInfos: new Map(),
    groupInfos: new Map(),
    writes: new Map(),
  };
  private readonly allocations: Allocations;
  private over = false;

  /** `onStart` is called once, when the run asks for its first encoder. */
  constructor(
    private readonly watched: WatchedDevice,
    private onStart: (() => void) | null = null,
  ) {
    this.allocations = new Allocations(watched);
  }

  /**
   * Run `action` with this recorder installed; one recording at a time. Throws OutOfMemoryError, which is no fault of
   * the device, if there is no memory for what it allocates.
   */
  async during(action: () => Promise<unknown>): Promise<void> {
    if (this.watched.recorder) throw new EngineError("TapeError", "another recording is under way on this device");
    this.watched.recorder = this;
    try {
      await action();
    } finally {
      this.watched.recorder = null;
      this.over = true;
      await this.allocations.require("the buffers of a captured session");
    }
  }

  data(): RecordingData {
    const pipelines: RecordingData["pipelines"] = {};
    for (const [id, info] of this.objects.pipelineInfos)
      pipelines[id] = {
        label: info.label,
        code: info.code,
        bindings: declaredBindings(info.code).map(({ group, binding, access, name }) => [group, binding, access, name]),
      };
    const bind_groups: RecordingData["bind_groups"] = {};
    for (const [id, info] of this.objects.groupInfos) {
      bind_groups[id] = info.entries.map((e) => [e.binding, e.buffer.id, e.offset, e.size]);
      for (const entry of info.entries) {
        this.objects.infos.set(entry.buffer.id, entry.buffer);
        this.objects.buffers.set(entry.buffer.id, entry.object);
      }
    }
    const buffers: RecordingData["buffers"] = {};
    for (const [id, info] of this.objects.infos)
      buffers[id] = { size: info.size, usage: info.usage, label: info.label };
    return { ops: this.ops, pipelines, bind_groups, buffers };
  }

  submit(): boolean {
    return true;
  }

  allocate<T>(action: () => T): T {
    return this.allocations.during(action);
  }

  write(buffer: BufferInfo, offset: number, bytes: Uint8Array): void {
    this.objects.infos.set(buffer.id, buffer);
    const writes = this.objects.writes.get(buffer.id) ?? [];
    this.objects.writes.set(buffer.id, writes);
    writes.push({ offset, bytes: bytes.slice() });
    this.ops.push(["write", buffer.id, offset, hex(bytes)]);
  }

  encoder(real: GPUCommandEncoder): GPUCommandEncoder {
    this.onStart?.();
    this.onStart = null;
    const plain = {
      copy: real.copyBufferToBuffer.bind(real) as (...args: unknown[]) => undefined,
      clear: real.clearBuffer.bind(real),
      pass: real.beginComputePass.bind(real),
    };
    const copyBuffer = (...args: unknown[]): undefined => {
      if (this.over) return plain.copy(...args);
      // The short form is (source, destination, size?).
      const [source, from, target, to, size] =
        typeof args[1] === "number"
          ? (args as [GPUBuffer, number, GPUBuffer, number, number])
          : [args[0] as GPUBuffer, 0, args[1] as GPUBuffer, 0, args[2] as number | undefined];
      const bytes = size ?? this.watched.info(source).size - from;
      this.ops.push(["copy", this.buffer(source), from, this.buffer(target), to, bytes]);
    };
    real.copyBufferToBuffer = copyBuffer as GPUCommandEncoder["copyBufferToBuffer"];
    real.clearBuffer = (buffer, offset = 0, size) => {
      if (this.over) return plain.clear(buffer, offset, size);
      this.ops.push(["clear", this.buffer(buffer), offset, size ?? this.watched.info(buffer).size - offset]);
    };
    real.beginComputePass = (descriptor) => (this.over ? plain.pass(descriptor) : this.pass(plain.pass(descriptor)));
    for (const name of [
      "copyBufferToTexture",
      "copyTextureToBuffer",
      "copyTextureToTexture",
      "beginRenderPass",
    ] as const) {
      const unrecorded = real[name].bind(real) as (...args: unknown[]) => unknown;
      (real as unknown as Record<string, unknown>)[name] = (...args: unknown[]) => {
        if (this.over) return unrecorded(...args);
        throw new EngineError("TapeError", `the decode step uses ${name}, which a tape does not record`);
      };
    }
    return real;
  }

  private pass(real: GPUComputePassEncoder): GPUComputePassEncoder {
    let pipeline: GPUComputePipeline | null = null;
    let groups: GPUBindGroup[] = [];
    const bound = (): [number, number[]] => {
      if (!pipeline) throw new EngineError("TapeError", "a dispatch was recorded before any pipeline was set");
      return [this.pipeline(pipeline), groups.map((group) => this.bindGroup(group))];
    };
    const plain = {
      pipeline: real.setPipeline.bind(real),
      group: real.setBindGroup.bind(real) as (...args: unknown[]) => undefined,
      dispatch: real.dispatchWorkgroups.bind(real),
      indirect: real.dispatchWorkgroupsIndirect.bind(real),
    };
    real.setPipeline = (next) => {
      if (this.over) return plain.pipeline(next);
      pipeline = next;
    };
    real.setBindGroup = (index: number, group: GPUBindGroup | null | undefined, ...rest: unknown[]) => {
      if (this.over) return plain.group(index, group, ...rest);
      if (rest.length)
        throw new EngineError("TapeError", "the decode step uses dynamic offsets, which a tape does not record");
      groups = groups.slice();
      if (group) groups[index] = group;
    };
    real.dispatchWorkgroups = (x, y = 1, z = 1) => {
      if (this.over) return plain.dispatch(x, y, z);
      this.ops.push(["dispatch", ...bound(), x, y, z]);
    };
    real.dispatchWorkgroupsIndirect = (buffer, offset) => {
      if (this.over) return plain.indirect(buffer, offset);
      this.ops.push(["indirect", ...bound(), this.buffer(buffer), offset]);
    };
    return real;
  }

  private buffer(buffer: GPUBuffer): number {
    const info = this.watched.info(buffer);
    this.objects.buffers.set(info.id, buffer);
    this.objects.infos.set(info.id, info);
    return info.id;
  }

  private pipeline(pipeline: GPUComputePipeline): number {
    const info = this.watched.pipelines.get(pipeline);
    if (!info) throw new EngineError("TapeError", "a pipeline was used that was not made on this device");
    this.objects.pipelines.set(info.id, pipeline);
    this.objects.pipelineInfos.set(info.id, info);
    return info.id;
  }

  private bindGroup(group: GPUBindGroup): number {
    const info = this.watched.bindGroups.get(group);
    if (!info) throw new EngineError("TapeError", "a bind group was used that was not made on this device");
    this.objects.bindGroups.set(info.id, group);
    this.objects.groupInfos.set(info.id, info);
    return info.id;
  }
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
