// The one loop by which a data file reaches its target: shard by shard from the store, or from its source, checked and
// stored on the way. Python plans it, and decides what becomes of a problem (capstan.weights.weight_file).

import { EngineError, type EngineErrorCode } from "../errors";
import type { Backing, DataFile } from "./backing";
import { Chunk, type ReadAt } from "./chunk";
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
  writes: boolean;
  journal: string | null;
  request: number;
  alone: boolean;
}

/** See capstan.host.storage.Outcome. */
interface Outcome {
  at: number;
  kept: [shard: number, digest: string][];
  unsound: number[];
  problem: "read" | "write" | "source" | "digest" | null;
  message?: string;
  wait?: number | undefined;
}

/** A load that was begun ahead of another one. */
export interface Ahead {
  /** Whether it does what `load` plans, with the file `data`: wait until its bytes are on the GPU. If not, it ends. */
  finished(load: LoadPlan, data: string | undefined, told: (done: number) => void): Promise<boolean>;
  stop(): Promise<void>;
}

/** Takes the bytes of a file in ascending order; what it does not want may be left out. */
export interface Target {
  /** Whether it was given up: nothing is fetched or stored any more. */
  readonly closed: boolean;
  wants(start: number, length: number): boolean;
  /** Take `length` bytes from `start` of the file; false if `read` does not give them all: none is taken then. */
  put(start: number, length: number, read: ReadAt): Promise<boolean>;
  /** The same load that was begun ahead of this one. */
  takeAhead?(): Ahead | null;
}

type Source = Pick<HttpSource | BlobSource, "position" | "end" | "seek" | "read" | "readAt">;

export class WeightLoad {
  private readonly chunk: Chunk;
  private readonly outcome: Outcome;

  /** `told` is called with the offset that is reached, `hash` with the start and the bytes of each shard. */
  constructor(
    private readonly plan: LoadPlan,
    private readonly target: Target,
    private readonly file: DataFile | null | undefined,
    private readonly told: (done: number) => void,
    private readonly source?: Source,
    private readonly backing?: Backing | null,
    private readonly hash?: ((start: number, bytes: Uint8Array<ArrayBuffer>) => void) | null,
  ) {
    this.chunk = new Chunk(Math.min(plan.shard, plan.size ?? plan.shard));
    this.outcome = { at: plan.start, kept: [], unsound: [], problem: null };
  }

  /** Load the part of the plan. Throws errors for which Python has no policy. */
  async run(): Promise<Outcome> {
    const { plan, target, file, outcome, chunk } = this;
    const stored = new Set(plan.stored);
    const direct = plan.verifies || this.hash ? null : file?.direct;
    if (await target.takeAhead?.()?.finished(plan, file?.name, this.told)) outcome.at = plan.end;
    while (outcome.at < plan.end) {
      if (target.closed) throw new EngineError("ClosedError", "the load was given up");
      const { at } = outcome;
      const shard = Math.floor(at / plan.shard);
      const length = plan.size === null ? plan.shard : Math.min(plan.shard, plan.size - at);
      let found = length;
      const wanted = target.wants(at, length);
      const here = stored.has(shard);
      const poured = wanted && here && direct && (await target.put(at, length, direct));
      if (!poured && (wanted || plan.journal !== null)) {
        if (!here || !(await this.isSound(shard, length))) found = await this.fetch(shard, length);
        if (outcome.problem && outcome.problem !== "write") break;
        this.hash?.(at, chunk.view(found));
        if (wanted && found > 0) await target.put(at, found, (into, from) => chunk.copy(into, from - at));
      }
      this.told((outcome.at = at + found));
      if (outcome.problem || found < length) break;
    }
    return outcome;
  }

  /** Read a stored shard; whether it is what its digest says, where it is compared. */
  private async isSound(shard: number, length: number): Promise<boolean> {
    const { plan, chunk, outcome } = this;
    try {
      const found = await this.file!.read(chunk, outcome.at, length);
      if (found === length && (!plan.verifies || (await chunk.sha256(length)) === plan.digests[shard])) return true;
    } catch (error) {
      this.stop("read", "StorageError", error);
      return true;
    }
    outcome.unsound.push(shard);
    return false;
  }

  /** Fetch a shard, compare it with its digest, and store it; returns its bytes. */
  private async fetch(shard: number, length: number): Promise<number> {
    const { plan, chunk, outcome, source } = this;
    let found = 0;
    try {
      const { at } = outcome;
      if (plan.alone) found = await source!.readAt(chunk, at, length);
      else {
        if (source!.position !== at || source!.end === at) await source!.seek(at, this.endOfRequest(shard));
        found = await source!.read(chunk, length);
      }
      if (found < length && plan.size !== null) {
        throw new EngineError("BrokenDownloadError", `the server sent ${found} of ${length} bytes`);
      }
    } catch (error) {
      this.stop("source", "BrokenDownloadError", error);
      return found;
    }
    const expected = plan.vouched ? plan.digests[shard] : null;
    if (!expected && !plan.writes) return found;
    const digest = await chunk.sha256(found);
    if (expected && digest !== expected) Object.assign(outcome, { problem: "digest", message: digest });
    else if (plan.writes) await this.keep(shard, found, digest);
    return found;
  }

  /** The end of one request: that of the run of shards that are missing. Null is the end of the file. */
  private endOfRequest(shard: number): number | null {
    const { plan } = this;
    if (plan.size === null) return null;
    const next = plan.stored.find((one) => one > shard) ?? Infinity;
    const end = Math.min(next, shard + Math.max(1, Math.floor(plan.request / plan.shard))) * plan.shard;
    return end >= plan.size ? null : end;
  }

  /** Store a shard that was fetched, data before journal; after it the loop stops if there is a problem. */
  private async keep(shard: number, length: number, digest: string): Promise<void> {
    const { plan, outcome } = this;
    try {
      await this.file!.write(this.chunk, outcome.at, length);
      if (plan.journal) await this.backing!.appendText(plan.journal, JSON.stringify([shard, digest]) + "\n");
      outcome.kept.push([shard, digest]);
    } catch (error) {
      this.stop("write", "StorageError", error);
    }
  }

  /** Stop for an error with this code; throws any other. */
  private stop(problem: Outcome["problem"], code: EngineErrorCode, error: unknown): void {
    if (!(error instanceof EngineError) || error.code !== code) throw error;
    Object.assign(this.outcome, { problem, message: error.message, wait: error.retryAfter });
  }
}
