// Learns the workgroup counts of indirect dispatches from the kernels that define them, so that the formula exists in
// one place only.

import { EngineError } from "../../wire/errors";
import type { WatchedDevice } from "./device";
import { StepEncoder, type Tape } from "./player";
import type { RecordingObjects } from "./recorder";

/** Bytes of one set of counts in a table: three u32 and one for alignment. */
const STRIDE = 16;
const COUNTS = 12;
/** Lengths in one command buffer. */
const BATCH = 256;
/** One element of an int64 mask. */
const MASK_ELEMENT = 8;
const OWNER = "workgroup counts";

/**
 * Replay `slice` once for each length 1 to `lengths`, under a mask that grows by one, and collect the counts it leaves.
 * Returns u32 [lengths + 1, 3] as bytes, row 0 unused. The slice may write the KV cache: nothing in it may be needed.
 */
export async function countsByLength(
  watched: WatchedDevice,
  slice: Tape,
  objects: RecordingObjects,
  counts: { source: number; offset: number },
  mask: GPUBuffer,
  lengths: number,
): Promise<Uint8Array> {
  const source = objects.buffers.get(counts.source);
  if (!source) throw new EngineError("TapeError", `buffer ${counts.source} was not recorded`);
  const copyable = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const table = watched.buffer("kernels", OWNER, { label: "counts", size: STRIDE * (lengths + 1), usage: copyable });
  const one = watched.buffer("kernels", OWNER, { label: "one", size: MASK_ELEMENT, usage: copyable });
  try {
    watched.write(one, 0, new Uint8Array([1, 0, 0, 0, 0, 0, 0, 0]));
    watched.write(mask, 0, new Uint8Array(watched.info(mask).size));
    for (let first = 1; first <= lengths; first += BATCH) {
      const step = new StepEncoder(watched);
      for (let length = first; length < Math.min(first + BATCH, lengths + 1); length++) {
        step.endPass();
        step.encoder.copyBufferToBuffer(one, 0, mask, MASK_ELEMENT * (length - 1), MASK_ELEMENT);
        slice.encode(step, length);
        step.endPass();
        step.encoder.copyBufferToBuffer(source, counts.offset, table, STRIDE * length, COUNTS);
      }
      watched.submit([step.finish()]);
    }
    return await readCounts(watched, table, lengths + 1);
  } finally {
    table.destroy();
    one.destroy();
  }
}

/** Play one step of a tape and return the counts each indirect dispatch got: u32 [dispatches, 3] as bytes. */
export async function countsOfStep(watched: WatchedDevice, tape: Tape, length: number): Promise<Uint8Array> {
  const dispatches = tape.indirectCount;
  const usage = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const table = watched.buffer("kernels", OWNER, { label: "counts", size: STRIDE * Math.max(1, dispatches), usage });
  try {
    const step = new StepEncoder(watched);
    let index = 0;
    tape.encodeApart(step, length, (op) => {
      if (op.kind === "indirect")
        step.encoder.copyBufferToBuffer(op.buffer, op.offset, table, STRIDE * index++, COUNTS);
    });
    watched.submit([step.finish()]);
    return await readCounts(watched, table, dispatches);
  } finally {
    table.destroy();
  }
}

async function readCounts(watched: WatchedDevice, table: GPUBuffer, rows: number): Promise<Uint8Array> {
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const staging = watched.buffer("staging", OWNER, { label: "counts", size: table.size, usage });
  try {
    const encoder = watched.encoder();
    encoder.copyBufferToBuffer(table, 0, staging, 0, table.size);
    watched.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    watched.assertHealthy();
    const strided = new Uint32Array(staging.getMappedRange());
    const packed = new Uint32Array(3 * rows);
    for (let row = 0; row < rows; row++)
      packed.set(strided.subarray((STRIDE / 4) * row, (STRIDE / 4) * row + 3), 3 * row);
    return new Uint8Array(packed.buffer);
  } catch (error) {
    throw await watched.explain(error);
  } finally {
    staging.destroy();
  }
}
