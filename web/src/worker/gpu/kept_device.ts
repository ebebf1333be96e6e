// One device goes from model to model: a closed model leaves it, without anything on it, to the one that is opened next.
//
// onnxruntime-web 1.30 takes references to each device that it is given and to its queue (`webgpuRegisterDevice`), and
// never gives them back. A browser keeps a destroyed device's tables while there is a reference to the device: 0.8 MiB
// of the GPU process each, on an H200. So onnxruntime-web gets a stand-in, which lets go of the device when that is
// destroyed.

import { type AdapterSummary, identity, openDevice, requireAdapter } from "../../wire/adapter";

/** A device, and the callbacks for its loss. */
export interface OpenedDevice {
  readonly device: GPUDevice;
  readonly summary: AdapterSummary;
  /** The identity of its adapter. */
  readonly identity: string;
  /** The stand-in for the device that onnxruntime-web gets. */
  readonly borrowed: Borrowed<GPUDevice>;
  destroyed: boolean;
  lost: GPUDeviceLostInfo | null;
  /**
   * A caller that waits for `device.lost` is held as long as the device lives, so that one place does it for all of
   * them.
   */
  onLost: ((info: GPUDeviceLostInfo) => void) | null;
  /** Sessions of onnxruntime-web on the device, those too that are being made or released. */
  sessions: number;
}

/** A stand-in that can release its target. */
interface Borrowed<T> {
  readonly proxy: T;
  revoke(): void;
}

const opened = new WeakMap<GPUDevice, OpenedDevice>();
let kept: OpenedDevice | null = null;

/**
 * The device that was kept, if it is one of the adapter that there is now, else a new one. No other caller gets it
 * until it is kept again. Throws DeviceUnavailableError, DeviceLostError.
 */
export async function takeDevice(): Promise<OpenedDevice> {
  const adapter = await requireAdapter();
  const here = identity(adapter);
  const found = kept;
  kept = null;
  if (found) {
    // An unreported loss is reported before this.
    await found.device.queue.onSubmittedWorkDone().catch(() => undefined);
    if (!found.lost && found.identity === here) return found;
    destroyDevice(found);
  }
  const { device, summary } = await openDevice(adapter);
  const fresh = { destroyed: false, lost: null, onLost: null, sessions: 0 };
  const made: OpenedDevice = { device, summary, identity: here, borrowed: lend(device), ...fresh };
  opened.set(device, made);
  void device.lost.then((info) => {
    made.lost = info;
    made.onLost?.(info);
    made.onLost = null;
  });
  return made;
}

/** Keep a device without a fault and without buffers for the next model, or destroy it. */
export function keepDevice(device: OpenedDevice): void {
  // A session would go on with buffers that are gone.
  if (kept || device.lost || device.sessions) destroyDevice(device);
  else kept = device;
}

export function destroyDevice(device: OpenedDevice): void {
  device.device.destroy();
  device.destroyed = true;
  letGo(device);
}

/** A device as onnxruntime-web gets it. */
export function borrowedDevice(device: GPUDevice): GPUDevice {
  return opened.get(device)?.borrowed.proxy ?? device;
}

/** Count a session of onnxruntime-web on a device from before it is made until after it was released. */
export function countSession(device: GPUDevice, change: 1 | -1): void {
  const found = opened.get(device);
  if (!found) return;
  found.sessions += change;
  letGo(found);
}

/** Once onnxruntime-web has no use for the stand-in any more. */
function letGo(device: OpenedDevice): void {
  if (device.destroyed && !device.sessions) device.borrowed.revoke();
}

function lend(device: GPUDevice): Borrowed<GPUDevice> {
  const queue = standIn(device.queue, {});
  const borrowed = standIn(device, { queue: queue.proxy });
  const revoke = (): void => {
    borrowed.revoke();
    queue.revoke();
  };
  return { proxy: borrowed.proxy, revoke };
}

/** An object that has what `real` has at each time, but for the properties of `instead`. */
function standIn<T extends object>(real: T, instead: Partial<T>): Borrowed<T> {
  return Proxy.revocable(real, {
    get: (target, key) => {
      const found: unknown = key in instead ? instead[key as keyof T] : Reflect.get(target, key);
      return typeof found === "function" ? (found.bind(target) as unknown) : found;
    },
  });
}
