// The fused kernels of one tape: their pipelines, bind groups, and the scratch buffers between them.

import { EngineError } from "../errors";
import { Allocations } from "./allocations";
import type { WatchedDevice } from "./device";
import { FusedPipelines, type KernelText } from "./kernels";
import type { RecordingObjects } from "./recorder";

/**
 * A kernel's binding: a recorded buffer by id, a scratch buffer by number, bytes [offset, size] of a scratch buffer, or
 * such a part of a buffer of ours by handle.
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
  private constructor(
    readonly kernels: readonly FusedKernel[],
    private readonly scratch: readonly GPUBuffer[],
  ) {}

  /**
   * Compiles and binds; nothing stays allocated on failure. Throws TapeError if a kernel does not fit the device,
   * OutOfMemoryError if its scratch does not.
   */
  static async make(
    watched: WatchedDevice,
    pipelines: FusedPipelines,
    spec: FusedSpec,
    objects: RecordingObjects,
    buffer: (handle: number) => GPUBuffer,
  ): Promise<FusedKernels> {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const compiled = await Promise.all(spec.kernels.map((kernel) => pipelines.get(kernel)));
    const scratch: GPUBuffer[] = [];
    const resource = (binding: FusedBinding): GPUBufferBinding => {
      const [kind, id] = binding;
      if (kind === "span") return { buffer: buffer(id), offset: binding[2], size: binding[3] };
      const found = kind === "recorded" ? objects.buffers.get(id) : scratch[id];
      if (!found) throw new EngineError("TapeError", `a fused kernel names ${kind} buffer ${id}, which there is not`);
      return kind === "part" ? { buffer: found, offset: binding[2], size: binding[3] } : { buffer: found };
    };
    const allocations = new Allocations(watched);
    const bind = (): FusedKernel[] => {
      for (const size of spec.scratch)
        scratch.push(watched.buffer("kernels", spec.owner, { label: "tape scratch", size, usage }));
      return spec.kernels.map(({ shader, bindings }, index) => {
        const { pipeline, layout, names } = compiled[index]!;
        const missing = names.filter((name) => !(name in bindings));
        const unknown = Object.keys(bindings).filter((name) => !names.includes(name));
        if (missing.length || unknown.length)
          throw new EngineError(
            "TapeError",
            `kernel ${shader} declares ${names.join(", ")}; not given: ${missing.join(", ") || "none"}; ` +
              `given and not declared: ${unknown.join(", ") || "none"}`,
          );
        const entries = names.map((name, place) => ({ binding: place, resource: resource(bindings[name]!) }));
        return { pipeline, group: watched.device.createBindGroup({ label: shader, layout, entries }) };
      });
    };
    try {
      const kernels = allocations.during(bind);
      await allocations.require("the scratch of a tape's kernels");
      return new FusedKernels(kernels, scratch);
    } catch (error) {
      for (const held of scratch) held.destroy();
      throw error;
    }
  }

  /** A scratch buffer by number. */
  scratchBuffer(number: number): GPUBuffer {
    const found = this.scratch[number];
    if (!found) throw new EngineError("TapeError", `the tape names scratch buffer ${number}, which there is not`);
    return found;
  }

  /** Fill the scratch buffers with bytes 0xFF, which no kernel takes for a finite float. */
  poison(watched: WatchedDevice): void {
    for (const held of this.scratch) watched.poison(held);
  }

  destroy(): void {
    for (const held of this.scratch) held.destroy();
  }
}
