// One device goes from model to model: a closed model leaves it, without anything on it, to the one that is opened next.
//
// onnxruntime-web 1.30 takes a reference to each device that it is given (`webgpuRegisterDevice`) and never gives it
// back, so that what the driver has for a device stays until the worker ends, also when the device was destroyed: 1.1 MiB
// for each model that was loaded, on an H200.

import { type AdapterSummary, identity, openDevice, requireAdapter } from "./adapter";

/** A device, and whom to tell of its loss. */
export interface OpenedDevice {
  readonly device: GPUDevice;
  readonly summary: AdapterSummary;
  /** Of its adapter. */
  readonly identity: string;
  lost: GPUDeviceLostInfo | null;
  /** Whoever waits for `device.lost` is held as long as the device lives, so that one place does it for all of them. */
  onLost: ((info: GPUDeviceLostInfo) => void) | null;
  /** Sessions of onnxruntime-web on the device, those too that are being made or released. */
  sessions: number;
}

const opened = new WeakMap<GPUDevice, OpenedDevice>();
let kept: OpenedDevice | null = null;

/**
 * The device that was kept, if it is one of the adapter that there is now, else a new one. Nobody else gets it until it
 * is kept again. Throws DeviceUnavailableError, DeviceLostError.
 */
export async function takeDevice(): Promise<OpenedDevice> {
  const adapter = await requireAdapter();
  const found = kept;
  kept = null;
  if (found) {
    // A loss that nobody was told of yet is told before this.
    await found.device.queue.onSubmittedWorkDone().catch(() => undefined);
    if (!found.lost && found.identity === identity(adapter)) return found;
    found.device.destroy();
  }
  const device = await openDevice(adapter);
  const made: OpenedDevice = { ...device, identity: identity(adapter), lost: null, onLost: null, sessions: 0 };
  opened.set(made.device, made);
  void made.device.lost.then((info) => {
    made.lost = info;
    made.onLost?.(info);
    made.onLost = null;
  });
  return made;
}

/** Keep a device without a fault and without buffers for the next model, or destroy it. */
export function keepDevice(device: OpenedDevice): void {
  // A session would go on with buffers that are gone.
  if (kept || device.lost || device.sessions) device.device.destroy();
  else kept = device;
}

/** Count a session of onnxruntime-web on a device from before it is made until after it was released. */
export function countSession(device: GPUDevice, change: 1 | -1): void {
  const found = opened.get(device);
  if (found) found.sessions += change;
}
