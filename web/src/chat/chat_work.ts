// The work that is under way in <capstan-chat>, an answer or other work: one at a time, and Stop aborts it.

import type { ChatTurn } from "./chat_turn";

export class Work {
  private current: { stop: AbortController; turn: ChatTurn | null; ended: Promise<void> } | null = null;

  constructor(
    /** Called when work begins and when it has ended. */
    private readonly onChange: (busy: boolean) => void,
  ) {}

  get busy(): boolean {
    return this.current !== null;
  }

  /** The turn of the work; null if there is none. */
  get turn(): ChatTurn | null {
    return this.current?.turn ?? null;
  }

  /** Abort the work, and resolve once it has ended. */
  async stop(): Promise<void> {
    this.current?.stop.abort();
    await this.current?.ended;
  }

  /** Abort the work without waiting; its end is not reported. */
  drop(): void {
    this.current?.stop.abort();
    const { busy } = this;
    this.current = null;
    if (busy) this.onChange(false);
  }

  /** Do some work. Resolves at its end to its failure, or to null if there is none or the work was aborted or dropped. */
  async run(work: (signal: AbortSignal) => Promise<void>, turn: ChatTurn | null): Promise<unknown> {
    if (this.current) return null;
    const stop = new AbortController();
    let end = (): void => {};
    const mine = (this.current = { stop, turn, ended: new Promise<void>((resolve) => (end = resolve)) });
    this.onChange(true);
    let failure: unknown = null;
    try {
      await work(stop.signal);
    } catch (error) {
      if (!stop.signal.aborted) failure = error;
    }
    end();
    if (this.current !== mine) return null;
    this.current = null;
    this.onChange(false);
    return failure;
  }
}
