// Reports the errors of a device; its loss ends every wait.

import { type AdapterSummary, isEndedProcess } from "../../wire/adapter";
import { EngineError } from "../../wire/errors";
import type { OpenedDevice } from "./kept_device";

/** Milliseconds after the GPU's answer during which an unexplained failure may prove to be the device's loss. */
const LOSS_MS = 100;

export abstract class DeviceHealth {
  readonly device: GPUDevice;
  readonly summary: AdapterSummary;

  private fault: EngineError | null = null;
  /** Functions that end the waits for a device that may be lost. */
  private readonly waiting = new Set<() => void>();
  /** Aborted at the end. */
  private readonly listening = new AbortController();

  protected constructor(protected readonly opened: OpenedDevice) {
    this.device = opened.device;
    this.summary = opened.summary;
  }

  /** Throw the first error of the device since it was opened; every burst checks. */
  assertHealthy(): void {
    const wrong = this.wrong();
    if (wrong) throw wrong;
  }

  protected get closed(): boolean {
    return this.listening.signal.aborted;
  }

  /** The fault, or that the device was closed. */
  private wrong(): EngineError | null {
    if (this.fault || !this.closed) return this.fault;
    return new EngineError("ClosedError", "the WebGPU device was closed; load the model again");
  }

  /** Throw where the device may be another model's by now. */
  protected requireOpen(): void {
    if (this.closed) this.assertHealthy();
  }

  /** Note what has gone wrong: nothing on the device can be trusted any more. */
  blame(error: GPUError): void {
    const code = error instanceof GPUOutOfMemoryError ? "OutOfMemoryError" : "ValidationError";
    this.fault ??= new EngineError(code, `WebGPU: ${error.message}`);
  }

  /** A failure seen elsewhere (a rejected mapAsync): the device's own fault when there is one. */
  async explain(error: unknown): Promise<Error> {
    // A device that is lost first rejects what was to be mapped, at once where it was destroyed, then reports its loss:
    // before it answers anything else, which takes the GPU process as long as other work keeps it.
    if (!this.wrong()) await Promise.race([this.device.lost, this.answered()]);
    const wrong = this.wrong();
    if (wrong) return wrong;
    return error instanceof Error ? error : new Error(String(error));
  }

  /** Await a promise; rejects once the device is lost, since a browser may leave the promise pending then. */
  protected async unlessLost<T>(promise: Promise<T>): Promise<T> {
    let stop = (): void => {};
    const lost = new Promise<never>((_, reject) => {
      stop = () => reject(this.wrong() ?? new Error("the device was lost"));
      if (this.opened.lost || this.closed) stop();
      else this.waiting.add(stop);
    });
    try {
      return await Promise.race([promise, lost]);
    } finally {
      this.waiting.delete(stop);
    }
  }

  private stopWaiting(): void {
    for (const stop of this.waiting) stop();
  }

  /** Resolves some time after the GPU process has handled all commands sent so far. */
  private async answered(): Promise<void> {
    await this.device.queue.onSubmittedWorkDone().catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, LOSS_MS));
  }

  /** Whether something went wrong. */
  protected get failed(): boolean {
    return this.fault !== null;
  }

  /** Hear of nothing any more, and wait for nothing. */
  protected endListening(): void {
    this.listening.abort("closed");
    this.stopWaiting();
    this.opened.onLost = null;
  }

  /** Note errors and the loss of the device from now on. */
  protected watchFaults(onLoss: () => void): void {
    this.device.addEventListener(
      "uncapturederror",
      (event) => {
        this.blame(event.error);
      },
      { signal: this.listening.signal },
    );
    this.opened.onLost = (info) => {
      const ended = isEndedProcess(info.message) ? "; the browser's GPU process ended" : "";
      const message = `the WebGPU device was lost (${info.reason}: ${info.message}${ended}); load the model again`;
      onLoss();
      // A loss outranks the validation errors that follow from it.
      this.fault = new EngineError("DeviceLostError", message);
      this.stopWaiting();
    };
    if (this.opened.lost) this.opened.onLost(this.opened.lost);
  }
}
