// Allocations that may fail: the caller gets an OutOfMemoryError, and the device is not lost.

import { EngineError } from "../../wire/errors";
import type { WatchedDevice } from "./device";

const REMEDY = "close other models and pages, or ask for less";

export class Allocations {
  private readonly scopes: Promise<GPUError | null>[] = [];

  constructor(private readonly watched: WatchedDevice) {}

  /** Do something at once that allocates, or that uses what was allocated so. */
  during<T>(action: () => T): T {
    const { device } = this.watched;
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    try {
      return action();
    } finally {
      this.scopes.push(device.popErrorScope(), device.popErrorScope());
    }
  }

  /** Throw OutOfMemoryError if there was no memory; any other error is the device's fault. Ask before it is used. */
  async require(what: string): Promise<void> {
    const errors = await Promise.all(this.scopes.splice(0)).catch(async (error: unknown) => {
      throw await this.watched.explain(error);
    });
    const lack = errors.find((error) => error instanceof GPUOutOfMemoryError);
    // Views of a buffer without memory are invalid, too.
    if (lack) throw new EngineError("OutOfMemoryError", `there is no memory for ${what}: ${lack.message}; ${REMEDY}`);
    for (const error of errors) if (error) this.watched.blame(error);
    this.watched.assertHealthy();
  }
}
