// Watches one step of a tape: keeps what its operations read and write, and runs kernels over that.
//
// Which values are kept, and what the kernels make of them, is planned in Python (capstan.tape.witness).

import type { WatchedDevice } from "./device";
import { FusedKernels, type FusedSpec } from "./fused";
import type { FusedPipelines } from "./kernels";
import { StepEncoder, type Tape } from "./player";
import type { RecordingObjects } from "./recorder";

export interface WitnessSpec {
  /** The kernels, in order, and their scratch. */
  kernels: FusedSpec;
  /** Workgroups of each kernel. */
  counts: [number, number, number][];
  /** How many of the kernels run before the step; the others follow it. */
  before: number;
  /** [operation of the tape that it follows (-1: none), kind of buffer, id, bytes, offset in scratch 0 that they go to] */
  copies: [number, "recorded" | "scratch", number, number, number][];
  /** Scratch buffer that is read back, and its bytes; 0 bytes for none. */
  results: [number, number];
}

/** Carry it out with a step of `tape` that sees `length` positions; without a tape the kernels alone run. */
export async function witness(
  watched: WatchedDevice,
  pipelines: FusedPipelines,
  spec: WitnessSpec,
  objects: RecordingObjects,
  buffer: (handle: number) => GPUBuffer,
  tape: Tape | null,
  length: number,
): Promise<Uint8Array> {
  const made = await FusedKernels.make(watched, pipelines, "kernels", spec.kernels, objects, buffer);
  const [number, bytes] = spec.results;
  let staging: GPUBuffer | null = null;
  try {
    const step = new StepEncoder(watched);
    const run = (first: number, end: number): void => {
      for (let i = first; i < end; i++) {
        const { pipeline, group } = made.kernels[i]!;
        step.pass.setPipeline(pipeline);
        step.pass.setBindGroup(0, group);
        step.pass.dispatchWorkgroups(...spec.counts[i]!);
      }
    };
    run(0, spec.before);
    if (tape) {
      const taps = new Map<number, () => void>();
      for (const [after, kind, id, size, offset] of spec.copies) {
        const earlier = taps.get(after);
        taps.set(after, () => {
          earlier?.();
          const from = tape.part(kind, id);
          step.encoder.copyBufferToBuffer(from.buffer, from.offset, made.scratchPart(0).buffer, offset, size);
        });
      }
      tape.encode(step, length, taps);
    }
    run(spec.before, spec.counts.length);
    step.endPass();
    if (bytes) {
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      staging = watched.buffer("kernels", spec.kernels.owner, { label: "verdict", size: bytes, usage });
      step.encoder.copyBufferToBuffer(made.scratchPart(number).buffer, 0, staging, 0, bytes);
    }
    watched.submit([step.finish()]);
    if (!staging) return new Uint8Array();
    await staging.mapAsync(GPUMapMode.READ);
    watched.assertHealthy();
    return new Uint8Array(staging.getMappedRange().slice(0));
  } catch (error) {
    throw await watched.explain(error);
  } finally {
    staging?.destroy();
    made.destroy();
  }
}
