// Spans of time for a trace: of the worker's start, of submits, waits, copies and the GPU. Python adds its own and makes
// the file of all (capstan/host/tracing.py). Nothing is kept while no trace is taken.

export type Track = "load" | "submit" | "wait" | "copy" | "GPU";
export type Arguments = Record<string, string | number>;
type Span = [track: Track, name: string, begin: number, end: number, given: Arguments];

/** Most spans of a trace: one more is counted as dropped. */
const MOST = 100_000;

/** The moments of a submit on the worker's clock: taken by the queue, done by the GPU, its bytes copied if there are any. */
export interface SubmitTimes {
  submitted: number;
  done: number;
  readable?: number;
}

export class Tracer {
  private spans: Span[] | null = null;
  private dropped = 0;
  /** GPU times on the GPU's own clock, and the device of each. */
  private gpu: { span: Span; device: object }[] = [];
  /** By how much the worker's clock is ahead of a device's: at most, since no submit is done before it is reported. */
  private ahead = new Map<object, number>();
  private unusable = 0;
  private readonly pending = new Set<Promise<void>>();
  /** Why the GPU's times are missing. */
  private lack = "";

  constructor(private readonly most = MOST) {}

  get on(): boolean {
    return this.spans !== null;
  }

  /** Take a trace from now on; one that is being taken goes on. */
  begin(): void {
    this.spans ??= [];
  }

  /** Note a span, in milliseconds of performance.now(). */
  add(track: Track, name: string, begin: number, end = performance.now(), given: Arguments = {}): void {
    if (this.hasRoom()) this.spans!.push([track, name, begin, end, given]);
  }

  /** Note the submit of something that was encoded from `begin` to `end`, and what came of it. */
  submit(
    name: string,
    begin: number,
    end: number,
    times: Promise<SubmitTimes>,
    gpu: GpuSpan | null,
    given: Arguments = {},
  ): void {
    this.add("submit", name, begin, end, given);
    this.awaited(async () => {
      const { submitted, done, readable } = await times;
      this.add("wait", name, submitted, done, given);
      if (readable !== undefined) this.add("copy", name, done, readable, given);
      if (gpu) this.addGpu(name, gpu.device, await gpu.read(), done, given);
    });
  }

  /** Note why a submit has no GPU time. */
  lacks(reason: string): void {
    this.lack = reason;
  }

  /** End the trace; resolves to its spans as JSON for capstan.host.spans.HostSpans. */
  async end(): Promise<string> {
    await Promise.all(this.pending);
    const spans = [...(this.spans ?? []), ...this.gpu.map((each) => this.placed(each))];
    const { dropped, unusable } = this;
    const lack = this.gpu.length ? "" : this.lack || "nothing was replayed on a GPU";
    this.spans = null;
    this.gpu = [];
    this.ahead.clear();
    this.dropped = this.unusable = 0;
    this.lack = "";
    return JSON.stringify({ spans, dropped, origin: performance.timeOrigin, no_gpu_times: lack, unusable });
  }

  private hasRoom(): boolean {
    if (!this.spans) return false;
    const room = this.spans.length + this.gpu.length < this.most;
    if (!room) this.dropped++;
    return room;
  }

  /** Has the trace's end await some work, whose failure is reported elsewhere. */
  private awaited(work: () => Promise<void>): void {
    const working = work()
      .catch(() => undefined)
      .finally(() => this.pending.delete(working));
    this.pending.add(working);
  }

  private addGpu(
    name: string,
    device: object,
    [begin, end]: readonly [number, number],
    done: number,
    given: Arguments,
  ): void {
    if (!(0 < begin && begin <= end)) this.unusable++;
    else if (this.hasRoom()) {
      this.gpu.push({ span: ["GPU", name, begin, end, given], device });
      this.ahead.set(device, Math.min(this.ahead.get(device) ?? Infinity, done - end));
    }
  }

  /**
   * On the worker's clock: all of a device are moved alike, as late as possible while none ends after its reported end.
   */
  private placed({ span: [track, name, begin, end, given], device }: { span: Span; device: object }): Span {
    const ahead = this.ahead.get(device)!;
    return [track, name, begin + ahead, end + ahead, given];
  }
}

/** Reads when a device's GPU began with a submit and ended it, in milliseconds on its own clock. */
export interface GpuSpan {
  readonly device: object;
  read(): Promise<readonly [begin: number, end: number]>;
}

/** The trace of this worker. */
export const tracer = new Tracer();
