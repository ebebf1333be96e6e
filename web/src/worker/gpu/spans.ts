// Operations on spans of buffers, all on the GPU: copies, zeros, casts, attention masks and position ids.
//
// py_src/capstan/device/host_memory.py defines what they compute. Offsets and sizes are bytes, of any alignment.

import type { BufferPart, WatchedDevice } from "./device";
import { type Command, type Operand, planSteps, SLOT_WORDS, type SpanStep, TEMPORARY } from "./span_plan";
import { type SpanKernel, SpanPipelines } from "./span_pipelines";

export type { SpanStep } from "./span_plan";

/** The largest binding in bytes: the kernels count bytes in an i32. */
const MOST_BOUND = 2 ** 30;
/** Same-buffer copies go through a temporary buffer of about this size, piece by piece. */
const BOUNCE_BYTES = 2 ** 24;
/** Slots of parameters, one for each dispatch, that there are at first. */
const LEAST_SLOTS = 16;
const SLOT_BYTES = 4 * SLOT_WORDS;
/** Bind groups that are kept; when there are more, all are made again. */
const MOST_GROUPS = 1024;

export interface SpanLimits {
  /** Most bytes that are bound at once. */
  binding?: number;
  /** Bytes of the temporary buffer that same-buffer copies go through. */
  bounce?: number;
}

/** Executes span steps on one device. Its own buffers grow to what is needed, and are kept until `destroy`. */
export class SpanOps {
  private readonly bindingLimit: number;
  private readonly bounceBytes: number;
  private readonly alignment: number;
  private readonly pipelines: SpanPipelines;
  private params: GPUBuffer | null = null;
  private temporary: GPUBuffer | null = null;
  private nothing: GPUBuffer | null = null;
  private readonly groups = new Map<string, GPUBindGroup>();
  /** Keys of `groups` by buffer id. */
  private readonly keys = new Map<number, Set<string>>();

  constructor(
    private readonly watched: WatchedDevice,
    limits: SpanLimits = {},
  ) {
    const of = watched.device.limits;
    this.alignment = of.minStorageBufferOffsetAlignment;
    this.bindingLimit = Math.min(limits.binding ?? MOST_BOUND, of.maxStorageBufferBindingSize, MOST_BOUND);
    this.bounceBytes = limits.bounce ?? BOUNCE_BYTES;
    this.pipelines = new SpanPipelines(watched.device);
  }

  /**
   * Do the steps, as if one after the other, in one submit. With a command encoder they are encoded into it instead, and
   * the caller submits it before the next call. Throws RangeError, and then has done nothing, for spans outside of their
   * buffers.
   */
  execute(steps: SpanStep[], commandEncoder?: GPUCommandEncoder): void {
    const nothing = (): GPUBuffer => (this.nothing ??= this.buffer("nothing", 16, GPUBufferUsage.STORAGE));
    const plan = planSteps(steps, {
      // A window may begin before the span, and end at a whole word.
      piece: this.bindingLimit - 2 * this.alignment,
      bounce: this.bounceBytes,
      nothing,
    });
    if (plan.commands.length === 0) return;
    if (plan.temporary > (this.temporary?.size ?? 0)) {
      this.temporary?.destroy();
      this.temporary = this.buffer("temporary", plan.temporary, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
    }
    const encoder = commandEncoder ?? this.watched.encoder();
    this.encode(plan.commands, encoder);
    if (!commandEncoder) this.watched.submit([encoder.finish()]);
  }

  destroy(): void {
    for (const buffer of [this.params, this.temporary, this.nothing]) buffer?.destroy();
    this.params = this.temporary = this.nothing = null;
    this.groups.clear();
  }

  private encode(commands: Command[], encoder: GPUCommandEncoder): void {
    const count = commands.filter((command) => command.kind === "dispatch").length;
    this.reserve(count);
    let slot = 0;
    const words = new Uint32Array(count * SLOT_WORDS);
    let pass: GPUComputePassEncoder | null = null;
    for (const command of commands) {
      if (command.kind !== "dispatch") {
        pass?.end();
        pass = null;
      }
      switch (command.kind) {
        case "copy":
          encoder.copyBufferToBuffer(
            this.resolve(command.source.buffer),
            command.source.offset,
            this.resolve(command.destination.buffer),
            command.destination.offset,
            command.bytes,
          );
          break;
        case "clear":
          encoder.clearBuffer(this.resolve(command.destination.buffer), command.destination.offset, command.bytes);
          break;
        case "dispatch": {
          const destination = this.window(command.destination);
          const source = command.source && this.window(command.source);
          const params = words.subarray(slot * SLOT_WORDS, (slot + 1) * SLOT_WORDS);
          if (source) params[0] = command.source!.offset - source.offset;
          params[1] = command.destination.offset - destination.offset;
          params[2] = command.destination.bytes;
          params[3] = command.stride;
          params.set(command.more, 4);
          params.set(command.rows, 8);
          pass ??= encoder.beginComputePass({ label: "spans" });
          pass.setPipeline(this.pipelines.get(command.kernel));
          pass.setBindGroup(0, this.group(command.kernel, destination, source), [slot * SLOT_BYTES]);
          pass.dispatchWorkgroups(...command.workgroups);
          slot++;
          break;
        }
      }
    }
    pass?.end();
    if (count > 0) this.watched.write(this.params!, 0, new Uint8Array(words.buffer));
  }

  /**
   * Have parameters for this number of dispatches. Those of earlier submits are written over: the queue keeps the
   * order.
   */
  private reserve(dispatches: number): void {
    if (dispatches * SLOT_BYTES <= (this.params?.size ?? 0)) return;
    this.params?.destroy();
    const slots = Math.max(LEAST_SLOTS, 2 ** Math.ceil(Math.log2(dispatches)));
    this.params = this.buffer("parameters", slots * SLOT_BYTES, GPUBufferUsage.UNIFORM);
    this.groups.clear();
  }

  private resolve(buffer: GPUBuffer | typeof TEMPORARY): GPUBuffer {
    return buffer === TEMPORARY ? this.temporary! : buffer;
  }

  /** The whole buffer, or so much of it around the operand as may be bound. */
  private window({ buffer: given, offset, bytes }: Operand): BufferPart {
    const buffer = this.resolve(given);
    const whole = buffer.size - (buffer.size % 4);
    if (whole <= this.bindingLimit) return { buffer, offset: 0, size: whole };
    const from = offset - (offset % this.alignment);
    return { buffer, offset: from, size: Math.min(Math.ceil((offset + bytes) / 4) * 4, whole) - from };
  }

  private group(kernel: SpanKernel, destination: BufferPart, source: BufferPart | undefined): GPUBindGroup {
    const windows = source ? [destination, source] : [destination];
    const ids = windows.map(({ buffer }) => this.watched.info(buffer).id);
    const key = windows.map(({ offset, size }, i) => `${ids[i]}:${offset}:${size}`).join(" ");
    const found = this.groups.get(key);
    if (found) return found;
    if (this.groups.size >= MOST_GROUPS) this.groups.clear();
    const entries: GPUBindGroupEntry[] = [
      { binding: 0, resource: destination },
      { binding: 1, resource: { buffer: this.params!, size: SLOT_BYTES } },
    ];
    if (source) entries.push({ binding: 2, resource: source });
    const made = this.watched.device.createBindGroup({
      label: "spans",
      layout: this.pipelines.layout(kernel),
      entries,
    });
    this.groups.set(key, made);
    windows.forEach(({ buffer }, i) => this.forgetWith(buffer, ids[i]!, key));
    return made;
  }

  /** Drop the bind group when the buffer is destroyed. */
  private forgetWith(buffer: GPUBuffer, id: number, key: string): void {
    let keys = this.keys.get(id);
    if (!keys) {
      keys = new Set();
      this.keys.set(id, keys);
      this.watched.info(buffer).onDestroy.add(() => {
        for (const key of this.keys.get(id) ?? []) this.groups.delete(key);
        this.keys.delete(id);
      });
    }
    keys.add(key);
  }

  private buffer(what: string, size: number, usage: GPUBufferUsageFlags): GPUBuffer {
    const label = `span ${what}`;
    return this.watched.buffer("kernels", "", { label, size, usage: usage | GPUBufferUsage.COPY_DST });
  }
}
