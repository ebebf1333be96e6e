// The one loop by which a data file reaches its target: shard by shard from the store, or from its source, checked and
// stored on the way. Python plans it, and decides what becomes of a problem (capstan.weights.weight_file).

import { EngineError, type EngineErrorCode } from "../errors";
import type { UploadAhead } from "../gpu/upload_ahead";
import type { Backing, DataFile } from "./backing";
import { Chunk } from "./chunk";
import type { BlobSource, HttpSource } from "./source";

/** See capstan.host.storage.LoadPlan. */
export interface LoadPlan {
  start: number;
  end: number;
  size: number | null;
  shard: number;
  digests: (string | null)[];
  vouched: boolean;
  stored: number[];
  verifies: boolean;
  keeps: boolean;
  writes: boolean;
  journal: string | null;
  request: number;
  alone: boolean;
}

interface Problem {
  what: "read" | "write" | "source" | "digest";
  message: string;
  wait?: number | undefined;
}

/** See capstan.host.storage.Outcome. */
interface Outcome {
  at: number;
  kept: [shard: number, digest: string][];
  unsound: number[];
  problem: Problem | null;
}

/** Fills memory from an offset of a file; returns the number of bytes read. */
export type ReadAt = (into: Uint8Array<ArrayBuffer>, at: number) => number | Promise<number>;

/** Takes the bytes of a file in ascending order; what it does not want may be left out. */
export interface Target {
  wants(start: number, length: number): boolean;
  /** Take `length` bytes from `start` of the file; false if `read` does not give them all: none is taken then. */
  put(start: number, length: number, read: ReadAt): Promise<boolean>;
  /** Wait until everything is in its place. */
  finish(): Promise<void>;
  close(): void;
  takeAhead?(): UploadAhead | null;
}

type Source = Pick<HttpSource | BlobSource, "position" | "end" | "seek" | "read" | "readAt">;

/** Give a target stored shards as they are, without a chunk in between; returns the bytes before the first that fails. */
export async function pour(
  target: Target,
  read: ReadAt,
  start: number,
  length: number,
  shard: number,
  told: (done: number) => void = () => undefined,
): Promise<number> {
  // Why it fails shows when the shard is read by itself.
  const tried: ReadAt = async (into, at) => {
    try {
      return await read(into, at);
    } catch {
      return 0;
    }
  };
  for (let done = 0; done < length;) {
    const size = Math.min(shard, length - done);
    if (!(await target.put(start + done, size, tried))) return done;
    told((done += size));
  }
  return length;
}

export class WeightLoad {
  private plan!: LoadPlan;
  private file: DataFile | null = null;
  private backing: Backing | null = null;
  private outcome!: Outcome;
  private chunk = new Chunk(0);
  private closed = false;

  constructor(
    private readonly source: Source,
    private readonly target: Target,
  ) {}

  /**
   * Load the part of the plan; `told` is called with the offset that is reached, `hash` with each shard. Returns the
   * Outcome, as JSON; what Python has no plan for is thrown.
   */
  async run(
    text: string,
    file: DataFile | undefined,
    backing: Backing | undefined,
    told: (done: number) => void,
    hash?: (start: number, bytes: Uint8Array<ArrayBuffer>) => void,
  ): Promise<string> {
    const plan = (this.plan = JSON.parse(text) as LoadPlan);
    const outcome: Outcome = (this.outcome = { at: plan.start, kept: [], unsound: [], problem: null });
    this.file = file ?? null;
    this.backing = backing ?? null;
    const stored = new Set(plan.stored);
    const direct = (!plan.verifies && !hash && file?.direct) || null;
    const most = Math.min(plan.shard, plan.size ?? plan.shard);
    if (this.chunk.capacity < most) this.chunk = new Chunk(most);
    if (await this.target.takeAhead?.()?.finished(plan, direct ? file!.name : null, told)) outcome.at = plan.end;
    while (outcome.at < plan.end) {
      if (this.closed) throw new EngineError("ClosedError", "the load was given up");
      const { at } = outcome;
      const shard = Math.floor(at / plan.shard);
      const length = plan.size === null ? plan.shard : Math.min(plan.shard, plan.size - at);
      let found = length;
      const wanted = this.target.wants(at, length);
      const here = stored.has(shard);
      const poured = wanted && here && direct && (await pour(this.target, direct, at, length, plan.shard)) === length;
      if (!poured && (wanted || plan.keeps)) {
        try {
          if (!here || !(await this.isSound(shard, at, length))) found = await this.fetch(shard, at, length);
        } catch (error) {
          if (!(error instanceof Stopped)) throw error;
          outcome.problem = error.problem;
          break;
        }
        hash?.(at, this.chunk.view(found));
        if (wanted && found > 0) await this.target.put(at, found, (into, from) => this.chunk.copy(into, from - at));
      }
      told((outcome.at = at + found));
      if (outcome.problem || found < length) break;
    }
    return JSON.stringify(outcome);
  }

  /** End where it is: nothing is fetched or stored any more. */
  close(): void {
    this.closed = true;
    this.target.close();
  }

  /** Read a stored shard; whether it is what its digest says, where it is compared. */
  private async isSound(shard: number, at: number, length: number): Promise<boolean> {
    const { plan, chunk, file, outcome } = this;
    const found = await file!.read(chunk, at, length).catch(stopping("read", "StorageError"));
    const sound = found === length && (!plan.verifies || (await chunk.sha256(length)) === plan.digests[shard]);
    if (!sound) outcome.unsound.push(shard);
    return sound;
  }

  /** Fetch a shard, compare it with its digest, and store it; returns its bytes. */
  private async fetch(shard: number, at: number, length: number): Promise<number> {
    const { plan, chunk, source } = this;
    const reading = plan.alone ? source.readAt(chunk, at, length) : this.stream(shard, at, length);
    const found = await reading.catch(stopping("source", "BrokenDownloadError"));
    if (found < length && plan.size !== null) {
      throw new Stopped({ what: "source", message: `the server sent ${found} of ${length} bytes` });
    }
    const expected = plan.vouched ? plan.digests[shard] : null;
    if (!expected && !plan.writes) return found;
    const digest = await chunk.sha256(found);
    if (expected && digest !== expected) throw new Stopped({ what: "digest", message: digest });
    if (plan.writes) await this.keep(shard, at, found, digest);
    return found;
  }

  /** The shard from the stream, which is opened anew where it does not go on there. */
  private async stream(shard: number, at: number, length: number): Promise<number> {
    const { source } = this;
    if (source.position !== at || source.end === at) await source.seek(at, this.endOfRequest(shard));
    return source.read(this.chunk, length);
  }

  /** The end of one request: that of the run of shards that are missing. Null is the end of the file. */
  private endOfRequest(shard: number): number | null {
    const { plan } = this;
    if (plan.size === null) return null;
    const next = plan.stored.find((one) => one > shard) ?? Infinity;
    const end = Math.min(next, shard + Math.max(1, Math.floor(plan.request / plan.shard))) * plan.shard;
    return end >= plan.size ? null : end;
  }

  /** Store a shard that was fetched, data before journal; the loop stops after it if there is a problem. */
  private async keep(shard: number, at: number, length: number, digest: string): Promise<void> {
    const { plan, outcome } = this;
    try {
      await this.file!.write(this.chunk, at, length);
      if (plan.journal) await this.backing!.appendText(plan.journal, JSON.stringify([shard, digest]) + "\n");
      outcome.kept.push([shard, digest]);
    } catch (error) {
      if (!(error instanceof EngineError) || error.code !== "StorageError") throw error;
      outcome.problem = { what: "write", message: error.message };
    }
  }
}

/** A problem that ends a run, and that Python decides about. */
class Stopped extends Error {
  constructor(readonly problem: Problem) {
    super(problem.message);
  }
}

/** Has an error with this code stop the run; any other is thrown on. */
function stopping(what: Problem["what"], code: EngineErrorCode): (error: unknown) => never {
  return (error) => {
    if (!(error instanceof EngineError) || error.code !== code) throw error;
    throw new Stopped({ what, message: error.message, wait: error.retryAfter });
  };
}
