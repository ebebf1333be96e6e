// Makes the GPUDevice that Capstan and onnxruntime-web share, counts its submits and buffers, reports its loss and its
// errors, and gives it to onnxruntime-web as an option of the execution provider.

import { EngineError } from "../../wire/errors";
import { DeviceHealth } from "./device_health";
import { HeldSubmit } from "./held_submit";
import { destroyDevice, keepDevice, type OpenedDevice, takeDevice } from "./kept_device";

export interface Counters {
  create_buffer: number;
  create_bind_group: number;
  write_buffer: number;
  submits: number;
  readbacks: number;
  readback_bytes: number;
}

/** The purpose of a buffer, as the ledger lists it; everything that onnxruntime-web allocates is scratch. */
export type Category = "weights" | "persistent" | "io" | "scratch" | "staging" | "kernels" | "user";

/** A buffer of this device, made by us or by onnxruntime-web. */
export interface BufferInfo {
  readonly id: number;
  readonly size: number;
  readonly usage: number;
  readonly category: Category;
  readonly owner: string;
  label: string;
  destroyed: boolean;
  /** Called once when the buffer is destroyed; a tape that uses the buffer ends here. */
  onDestroy: Set<() => void>;
  /** Called when the host writes into the buffer; a tape watches its private buffers this way. */
  onWrite: Set<() => void>;
}

/** Bytes of a buffer as a kernel binds them; `offset` is a multiple of minStorageBufferOffsetAlignment. */
export type BufferPart = Required<GPUBufferBinding>;

/** Live memory of one category and owner. */
export interface LedgerEntry {
  category: Category;
  owner: string;
  bytes: number;
  buffers: number;
}

export interface PipelineInfo {
  readonly id: number;
  readonly label: string;
  readonly code: string;
  readonly entryPoint: string | null;
  /** The values of its overridable constants. */
  readonly constants: Record<string, number>;
}

export interface BindGroupEntry {
  binding: number;
  buffer: BufferInfo;
  object: GPUBuffer;
  offset: number;
  size: number;
}

export interface BindGroupInfo {
  readonly id: number;
  readonly entries: BindGroupEntry[];
}

/** The calls that a recorder intercepts while it is installed; see recorder.ts. */
export interface Recorder {
  encoder(real: GPUCommandEncoder): GPUCommandEncoder;
  write(buffer: BufferInfo, offset: number, bytes: Uint8Array): void;
  /** Returns true if the submit is to be withheld. */
  submit(): boolean;
  /** Run an action that allocates, or that binds or writes a buffer that may not be allocated yet. */
  allocate<T>(action: () => T): T;
}

/** The methods that are replaced on a device, and on its queue. */
const WRAPPED = [
  "createShaderModule",
  "createComputePipeline",
  "createComputePipelineAsync",
  "createBuffer",
  "createBindGroup",
  "createCommandEncoder",
  "pushErrorScope",
] as const satisfies (keyof GPUDevice)[];
const WRAPPED_QUEUE = ["writeBuffer", "submit", "onSubmittedWorkDone"] as const satisfies (keyof GPUQueue)[];
const WRAPPED_BUFFER = ["destroy", "mapAsync"] as const satisfies (keyof GPUBuffer)[];

/**
 * A GPUDevice whose methods are replaced, on this one object, by versions that count, name and (while a recorder is
 * installed) report their calls. It must be wrapped before the first session is made on it.
 */
export class WatchedDevice extends DeviceHealth {
  readonly counters: Counters = {
    create_buffer: 0,
    create_bind_group: 0,
    write_buffer: 0,
    submits: 0,
    readbacks: 0,
    readback_bytes: 0,
  };
  readonly buffers = new WeakMap<GPUBuffer, BufferInfo>();
  /** Every buffer that was neither destroyed nor collected. */
  private readonly live = new Map<number, { info: BufferInfo; buffer: WeakRef<GPUBuffer> }>();
  /** onnxruntime-web may drop a buffer without destroying it; the browser frees it when it is collected. */
  private readonly collected = new FinalizationRegistry<number>((id) => this.live.delete(id));
  /** The owner of buffers that are made outside `attribute`, by onnxruntime-web. */
  scratchOwner = "";
  private attribution: { category: Category; owner: string } | null = null;
  readonly pipelines = new WeakMap<GPUComputePipeline, PipelineInfo>();
  readonly bindGroups = new WeakMap<GPUBindGroup, BindGroupInfo>();
  recorder: Recorder | null = null;
  /** performance.now() of the latest submit. */
  lastSubmit = 0;
  /** Through this goes every submit. */
  readonly held: HeldSubmit;
  /** The unrecorded calls, for our own commands: they run also while a recorder is installed. */
  private readonly own: {
    encoder: () => GPUCommandEncoder;
    write: (buffer: GPUBuffer, offset: number, bytes: Uint8Array<ArrayBuffer>) => void;
  };
  private nextId = 1;
  private constructor(opened: OpenedDevice) {
    super(opened);
    const { device } = opened;
    const { queue } = device;
    const submit = queue.submit.bind(queue);
    const write = queue.writeBuffer.bind(queue);
    const encoder = device.createCommandEncoder.bind(device);
    this.own = { encoder: () => encoder(), write: (buffer, offset, bytes) => write(buffer, offset, bytes) };
    this.held = new HeldSubmit((commands) => {
      this.counters.submits++;
      this.lastSubmit = performance.now();
      submit(commands);
    });
  }

  /** A device with every feature and the highest limits the adapter has: the last one that was closed, or a new one. */
  static async open(): Promise<WatchedDevice> {
    const watched = new WatchedDevice(await takeDevice());
    watched.watchFaults(() => watched.live.clear());
    watched.wrapResources();
    watched.wrapQueue();
    return watched;
  }

  /**
   * Give the device back: it is kept for the next caller, or destroyed if something went wrong on it; a loss that
   * follows is no fault. The device, its queue and the buffers that onnxruntime-web still holds may outlive this engine,
   * so none of our objects refers to them from now on, and no error made here, whose stack would hold the engine.
   */
  close(): void {
    this.endListening();
    this.held.drop();
    for (const name of WRAPPED) Reflect.deleteProperty(this.device, name);
    for (const name of WRAPPED_QUEUE) Reflect.deleteProperty(this.device.queue, name);
    for (const { info, buffer } of this.live.values()) {
      info.onDestroy.clear();
      info.onWrite.clear();
      const left = buffer.deref();
      if (!left) continue;
      for (const name of WRAPPED_BUFFER) Reflect.deleteProperty(left, name);
      left.destroy();
    }
    this.live.clear();
    if (this.failed) destroyDevice(this.opened);
    else keepDevice(this.opened);
  }

  /** Do something at once; the buffers it makes are of this category and owner. */
  attribute<T>(category: Category, owner: string, action: () => T): T {
    const outer = this.attribution;
    this.attribution = { category, owner };
    try {
      return action();
    } finally {
      this.attribution = outer;
    }
  }

  /** One of our buffers, in the ledger under this category and owner. */
  buffer(category: Category, owner: string, descriptor: GPUBufferDescriptor): GPUBuffer {
    this.requireOpen();
    return this.attribute(category, owner, () => this.device.createBuffer(descriptor));
  }

  /** Live bytes and buffers by category and owner. */
  ledger(): LedgerEntry[] {
    const entries = new Map<string, LedgerEntry>();
    for (const { info } of this.live.values()) {
      const { category, owner, size } = info;
      const key = `${category} ${owner}`;
      const entry = entries.get(key) ?? { category, owner, bytes: 0, buffers: 0 };
      entries.set(key, entry);
      entry.bytes += size;
      entry.buffers++;
    }
    return [...entries.values()];
  }

  /** An encoder that no recorder sees. */
  encoder(): GPUCommandEncoder {
    this.requireOpen();
    return this.own.encoder();
  }

  /** Submit commands that no recorder withholds. */
  submit(commands: GPUCommandBuffer[]): void {
    this.requireOpen();
    this.held.ours(commands);
  }

  /** Write bytes that no recorder sees; offset and length in bytes, multiples of 4. */
  write(buffer: GPUBuffer, offset: number, bytes: Uint8Array<ArrayBuffer>): void {
    this.requireOpen();
    this.held.release();
    this.counters.write_buffer++;
    for (const notify of this.info(buffer).onWrite) notify();
    this.own.write(buffer, offset, bytes);
  }

  /** Fill bytes of a buffer with 0xFF; a tape that watches it does not take this for a foreign write. */
  poison(buffer: GPUBuffer, offset = 0, size = this.info(buffer).size): void {
    this.requireOpen();
    this.held.release();
    this.counters.write_buffer++;
    this.own.write(buffer, offset, new Uint8Array(size).fill(0xff));
  }

  info(buffer: GPUBuffer): BufferInfo {
    const info = this.buffers.get(buffer);
    if (!info) throw new EngineError("TapeError", "a buffer was used that was not made on this device");
    return info;
  }

  /** A call that may be the recorded run's, and is unless another caller claims it. */
  private theirs<T>(call: () => T): T {
    return this.recorder && !this.attribution ? this.recorder.allocate(call) : call();
  }

  private wrapResources(): void {
    const device = this.device;
    const code = new WeakMap<GPUShaderModule, string>();
    const createShaderModule = device.createShaderModule.bind(device);
    device.createShaderModule = (descriptor) => {
      const module = createShaderModule(descriptor);
      code.set(module, descriptor.code);
      return module;
    };

    const notePipeline = (
      pipeline: GPUComputePipeline,
      descriptor: GPUComputePipelineDescriptor,
    ): GPUComputePipeline => {
      const { compute } = descriptor;
      this.pipelines.set(pipeline, {
        id: this.nextId++,
        label: descriptor.label ?? "",
        code: code.get(compute.module) ?? "",
        entryPoint: compute.entryPoint ?? null,
        constants: { ...compute.constants },
      });
      return pipeline;
    };
    const createComputePipeline = device.createComputePipeline.bind(device);
    device.createComputePipeline = (descriptor) => notePipeline(createComputePipeline(descriptor), descriptor);
    const createComputePipelineAsync = device.createComputePipelineAsync.bind(device);
    device.createComputePipelineAsync = async (descriptor) => {
      try {
        return notePipeline(await this.unlessLost(createComputePipelineAsync(descriptor)), descriptor);
      } catch (error) {
        throw await this.explain(error);
      }
    };

    const createBuffer = device.createBuffer.bind(device);
    device.createBuffer = (descriptor) => {
      this.counters.create_buffer++;
      const buffer = this.theirs(() => createBuffer(descriptor));
      const info: BufferInfo = {
        id: this.nextId++,
        size: descriptor.size,
        usage: descriptor.usage,
        label: descriptor.label ?? "",
        category: this.attribution?.category ?? "scratch",
        owner: this.attribution?.owner ?? this.scratchOwner,
        destroyed: false,
        onDestroy: new Set(),
        onWrite: new Set(),
      };
      this.buffers.set(buffer, info);
      this.live.set(info.id, { info, buffer: new WeakRef(buffer) });
      this.collected.register(buffer, info.id);
      const destroy = buffer.destroy.bind(buffer);
      buffer.destroy = () => {
        this.held.release();
        info.destroyed = true;
        this.live.delete(info.id);
        for (const notify of info.onDestroy) notify();
        info.onDestroy.clear();
        info.onWrite.clear();
        destroy();
      };
      const mapAsync = buffer.mapAsync.bind(buffer);
      buffer.mapAsync = (mode, offset, size) => {
        this.held.release();
        if (mode === GPUMapMode.READ) {
          this.counters.readbacks++;
          this.counters.readback_bytes += size ?? info.size - (offset ?? 0);
        }
        return mapAsync(mode, offset, size);
      };
      return buffer;
    };

    const createBindGroup = device.createBindGroup.bind(device);
    device.createBindGroup = (descriptor) => {
      this.counters.create_bind_group++;
      const group = this.theirs(() => createBindGroup(descriptor));
      const entries: BindGroupEntry[] = [];
      for (const { binding, resource } of descriptor.entries) {
        const bound = resource instanceof GPUBuffer ? { buffer: resource } : (resource as GPUBufferBinding);
        if (!(bound.buffer instanceof GPUBuffer)) continue;
        const buffer = this.info(bound.buffer);
        const offset = bound.offset ?? 0;
        entries.push({ binding, buffer, object: bound.buffer, offset, size: bound.size ?? buffer.size - offset });
      }
      this.bindGroups.set(group, { id: this.nextId++, entries });
      return group;
    };

    const createCommandEncoder = device.createCommandEncoder.bind(device);
    device.createCommandEncoder = (descriptor) => {
      // More is to come: what is held is not the last.
      this.held.release();
      const encoder = createCommandEncoder(descriptor);
      return this.recorder ? this.recorder.encoder(encoder) : encoder;
    };

    const pushErrorScope = device.pushErrorScope.bind(device);
    device.pushErrorScope = (filter) => {
      this.held.release();
      return pushErrorScope(filter);
    };
  }

  private wrapQueue(): void {
    const queue = this.device.queue;
    const writeBuffer = queue.writeBuffer.bind(queue) as (...args: unknown[]) => undefined;
    queue.writeBuffer = (buffer, offset, data, dataOffset, size) => {
      this.held.release();
      this.counters.write_buffer++;
      const info = this.info(buffer);
      for (const notify of info.onWrite) notify();
      if (this.recorder) this.recorder.write(info, offset, writtenBytes(data, dataOffset, size));
      return this.theirs(() =>
        size === undefined
          ? writeBuffer(buffer, offset, data, dataOffset)
          : writeBuffer(buffer, offset, data, dataOffset, size),
      );
    };
    queue.submit = (commands) => {
      if (!this.recorder?.submit()) this.held.theirs([...commands]);
    };
    const onSubmittedWorkDone = queue.onSubmittedWorkDone.bind(queue);
    queue.onSubmittedWorkDone = () => {
      this.held.release();
      return onSubmittedWorkDone();
    };
  }
}

/** The bytes a writeBuffer call uploads: offsets and sizes count elements for typed arrays, bytes otherwise. */
function writtenBytes(data: ArrayBufferLike | ArrayBufferView, dataOffset = 0, size?: number): Uint8Array {
  if (!ArrayBuffer.isView(data)) return new Uint8Array(data, dataOffset, size);
  const width = (data as unknown as { BYTES_PER_ELEMENT?: number }).BYTES_PER_ELEMENT ?? 1;
  const length = size === undefined ? data.byteLength - dataOffset * width : size * width;
  return new Uint8Array(data.buffer, data.byteOffset + dataOffset * width, length);
}
