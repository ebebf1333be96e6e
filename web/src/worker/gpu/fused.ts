// The fused kernels of one tape: their pipelines, bind groups, and the scratch buffers between them.

import { EngineError } from "../../wire/errors";
import { Allocations } from "./allocations";
import type { BufferPart, Category, WatchedDevice } from "./device";
import { FusedPipelines } from "./kernels";
import type { RecordingObjects } from "./recorder";
import type { KernelText } from "./wgsl";

/**
 * A kernel's binding: a recorded buffer by id, a scratch buffer by number, bytes [offset, size] of a scratch buffer, or
 * such a part of one of our buffers by handle.
 */
export type FusedBinding =
  ["recorded", number] | ["scratch", number] | ["part", number, number, number] | ["span", number, number, number];

export interface FusedSpec {
  /** Bytes of each scratch buffer. */
  scratch: number[];
  /** Each kernel with its bindings, by the names that its WGSL declares. */
  kernels: (KernelText & { bindings: Record<string, FusedBinding> })[];
  /** The owner of its memory in the ledger. */
  owner: string;
}

export interface FusedKernel {
  pipeline: GPUComputePipeline;
  group: GPUBindGroup;
}

export class FusedKernels {
  kernels: readonly FusedKernel[] = [];
  private scratch: readonly BufferPart[] = [];
  /** Scratch buffers that were made here; empty while others were given. */
  private own: readonly GPUBuffer[] = [];
  private destroyed = false;

  private constructor(
    private readonly watched: WatchedDevice,
    private readonly category: Category,
    private readonly spec: FusedSpec,
    private readonly bind: (scratch: readonly BufferPart[]) => FusedKernel[],
  ) {}

  /**
   * Compiles and binds; nothing stays allocated on failure. Throws TapeError if a kernel does not fit the device,
   * OutOfMemoryError if its scratch does not, which the ledger has under `category`.
   */
  static async make(
    watched: WatchedDevice,
    pipelines: FusedPipelines,
    category: Category,
    spec: FusedSpec,
    objects: RecordingObjects,
    buffer: (handle: number) => GPUBuffer,
  ): Promise<FusedKernels> {
    const compiled = await Promise.all(spec.kernels.map((kernel) => pipelines.get(kernel)));
    const bind = (scratch: readonly BufferPart[]): FusedKernel[] => {
      const resource = (binding: FusedBinding): GPUBufferBinding => {
        const [kind, id] = binding;
        if (kind === "span") return { buffer: buffer(id), offset: binding[2], size: binding[3] };
        if (kind === "recorded") {
          const found = objects.buffers.get(id);
          if (!found)
            throw new EngineError("TapeError", `a fused kernel names recorded buffer ${id}, which does not exist`);
          return { buffer: found };
        }
        const found = scratch[id];
        if (!found) throw new EngineError("TapeError", `a fused kernel names ${kind} buffer ${id}, which is missing`);
        if (kind === "scratch") return found;
        return { buffer: found.buffer, offset: found.offset + binding[2], size: binding[3] };
      };
      return spec.kernels.map(({ shader, bindings }, index) => {
        const { pipeline, layout, names } = compiled[index]!;
        const entries = names.map((name, place) => ({ binding: place, resource: resource(bindings[name]!) }));
        return { pipeline, group: watched.device.createBindGroup({ label: shader, layout, entries }) };
      });
    };
    const made = new FusedKernels(watched, category, spec, bind);
    await made.giveScratch(null);
    return made;
  }

  /** Bytes of each scratch buffer. */
  get scratchSizes(): readonly number[] {
    return this.spec.scratch;
  }

  /**
   * Have the kernels work in these parts of buffers, one for each scratch buffer, or in buffers made here. `bound` is
   * called once they do, before those that were made earlier are freed. On failure they work where they did: throws
   * OutOfMemoryError.
   */
  async giveScratch(parts: readonly BufferPart[] | null, bound: () => void = () => undefined): Promise<void> {
    const { watched, spec } = this;
    const allocations = new Allocations(watched);
    const own: GPUBuffer[] = [];
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const made = (size: number): BufferPart => {
      const buffer = watched.buffer(this.category, spec.owner, { label: "tape scratch", size, usage });
      own.push(buffer);
      return { buffer, offset: 0, size };
    };
    try {
      const [scratch, kernels] = allocations.during(() => {
        const scratch = parts ?? spec.scratch.map(made);
        return [scratch, this.bind(scratch)];
      });
      await allocations.require("the scratch of a tape's kernels");
      if (this.destroyed) throw new EngineError("ClosedError", "the tape was closed; load the model again");
      const old = this.own;
      [this.scratch, this.kernels, this.own] = [scratch, kernels, own];
      bound();
      for (const held of old) held.destroy();
    } catch (error) {
      for (const held of own) held.destroy();
      throw error;
    }
  }

  /** A scratch buffer by number. */
  scratchPart(number: number): BufferPart {
    const found = this.scratch[number];
    if (!found) throw new EngineError("TapeError", `the tape names scratch buffer ${number}, which does not exist`);
    return found;
  }

  /** Fill the scratch buffers with bytes 0xFF, which no kernel takes for a finite float. */
  poison(): void {
    for (const { buffer, offset, size } of this.scratch) this.watched.poison(buffer, offset, size);
  }

  destroy(): void {
    this.destroyed = true;
    for (const held of this.own) held.destroy();
  }
}
