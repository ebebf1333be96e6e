// The last submit of a run of onnxruntime-web, held back so that the copies of the run's results travel in it.

/**
 * Sends submits to a queue in order. Between `begin` and `end` the latest submit of onnxruntime-web waits here until ours
 * takes it along or until something comes whose effect depends on it: code that writes, maps, destroys a buffer, waits
 * for the queue or opens an error scope calls `release` first.
 */
export class HeldSubmit {
  private holding = false;
  private commands: GPUCommandBuffer[] = [];

  constructor(private readonly send: (commands: GPUCommandBuffer[]) => void) {}

  begin(): void {
    this.holding = true;
  }

  /** Submit what is held, and hold nothing more. */
  end(): void {
    this.holding = false;
    this.release();
  }

  /** A submit of onnxruntime-web. */
  theirs(commands: GPUCommandBuffer[]): void {
    this.release();
    if (this.holding) this.commands = commands;
    else this.send(commands);
  }

  /** One of our submits: one with what is held. */
  ours(commands: GPUCommandBuffer[]): void {
    this.send([...this.taken(), ...commands]);
  }

  release(): void {
    const commands = this.taken();
    if (commands.length) this.send(commands);
  }

  /** Forget what is held: the device is closed. */
  drop(): void {
    this.holding = false;
    this.taken();
  }

  private taken(): GPUCommandBuffer[] {
    const { commands } = this;
    this.commands = [];
    return commands;
  }
}
