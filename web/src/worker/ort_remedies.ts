// Remedies for what onnxruntime-web 1.30 leaves undone: captures that failed, commands that wait, buffers that it keeps.

import { createSession, IDENTITY, type Ort, type Placement } from "./ort";

/**
 * End a capture whose run failed, which onnxruntime-web 1.30 does not do: it would go on noting what later runs do, in
 * memory that is freed with the session. A capture that succeeds ends it; `input` is a storage buffer of 4 bytes or more.
 */
export async function endCapture(ort: typeof Ort, device: GPUDevice, input: GPUBuffer): Promise<void> {
  await withIdentity(ort, { device, capture: true }, (session) =>
    session.run({ x: ort.Tensor.fromGpuBuffer(input, { dataType: "float32", dims: [1] }) }),
  );
}

/**
 * Have onnxruntime-web submit what a failed run had encoded, which it would do with its next run: what that uses may be
 * destroyed by then.
 */
export async function submitPending(ort: typeof Ort, device: GPUDevice): Promise<void> {
  await withIdentity(ort, { device, capture: false, outputs: { y: "cpu" } }, (session) =>
    session.run({ x: new ort.Tensor("float32", Float32Array.of(0), [1]) }),
  );
}

/** Do something with a session of IDENTITY. */
async function withIdentity(
  ort: typeof Ort,
  placement: Placement,
  action: (session: Ort.InferenceSession) => Promise<unknown>,
): Promise<void> {
  const session = await createSession(ort, IDENTITY, placement);
  try {
    await action(session);
  } finally {
    await session.release();
  }
}

/** onnxruntime-web 1.30's note on a bound buffer: [handle in the wasm module, runs that use it]. */
type Registration = [handle: number, users: number];

/**
 * Keep (or stop keeping) buffers registered between runs of a captured session.
 *
 * onnxruntime-web 1.30 binds a captured session's tensors once, at its first run, yet gives their handles back after
 * every run, so that the second one finds none ("Cannot set properties of undefined"). A count of NaN, which is what it
 * gives to buffers of its own, never falls to zero. Call it while the first run is under way: there is no registration
 * before. A buffer that is no longer kept is given back after the next run that uses it; see giveBack.
 */
export function keepRegistered(tensors: Iterable<Ort.Tensor>, keep: boolean): void {
  for (const tensor of tensors) {
    const registration = registrationOf(tensor);
    if (registration) registration[1] = keep ? Number.NaN : 0;
  }
}

function registrationOf({ gpuBuffer }: Ort.Tensor): Registration | undefined {
  const buffer = gpuBuffer as unknown as Record<symbol, Registration>;
  const key = Object.getOwnPropertySymbols(buffer).find((symbol) => symbol.description === "gpuBufferMetadata");
  return key && buffer[key];
}

/**
 * Have onnxruntime-web let go of the buffers that are no longer kept, and so of their device, by runs that are refused:
 * they expect another element type, so that nothing is computed.
 */
export async function giveBack(ort: typeof Ort, device: GPUDevice, tensors: Ort.Tensor[]): Promise<void> {
  const left = new Set(tensors.filter((tensor) => registrationOf(tensor)?.[1] === 0).map((tensor) => tensor.gpuBuffer));
  if (left.size === 0) return;
  await withIdentity(ort, { device, capture: false, outputs: { y: "cpu" } }, async (session) => {
    for (const buffer of left) {
      const refused = session.run({ x: ort.Tensor.fromGpuBuffer(buffer, { dataType: "int32", dims: [1] }) });
      await refused.catch(() => undefined);
    }
  });
}
