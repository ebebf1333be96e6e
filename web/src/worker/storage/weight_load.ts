// The one loop by which a data file reaches its target: shard by shard from the store, or from its source, checked and
// stored on the way. Python plans it, and decides what becomes of a problem (capstan.weights.weight_file).

import type { Assets } from "../../wire/assets";
import { EngineError, type EngineErrorCode } from "../../wire/errors";
import { tracer } from "../trace";
import type { Backing, DataFile } from "./backing";
import { Chunk, type ReadAt } from "./chunk";
import { Hashing } from "./hashing";
import type { BlobSource, HttpSource } from "./source";

/** See capstan.host.storage_interface.LoadPlan. */
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

/** See capstan.host.storage_interface.Outcome. */
interface Outcome {
  at: number;
  kept: [shard: number, digest: string][];
  unsound: number[];
  problem: "read" | "write" | "source" | "digest" | null;
  message?: string;
  wait?: number | undefined;
}

/** A load that was begun ahead of another one. */
export interface EarlyLoad {
  /** Whether it does what `load` plans, with the file `data`: wait until its bytes are on the GPU. If not, it ends. */
  finished(load: LoadPlan, data: string | undefined, told: (done: number) => void): Promise<boolean>;
  stop(): Promise<void>;
}

/**
 * Takes the bytes of a file in ascending order; what it does not want may be left out. It may be asked whether it wants
 * bytes while those before are on their way.
 */
export interface Target {
  /** Whether it was given up: nothing is fetched or stored any more. */
  readonly closed: boolean;
  wants(start: number, length: number): boolean;
  /** Take `length` bytes from `start` of the file; false if `read` does not give them all: none is taken then. */
  put(start: number, length: number, read: ReadAt): Promise<boolean>;
  /** The same load that was begun ahead of this one. */
  takeEarly?(): EarlyLoad | null;
}

type Source = Pick<HttpSource | BlobSource, "position" | "end" | "seek" | "read" | "readAt" | "expect">;

/** From this number of bytes to fetch, a separate worker hashes them. */
const HASHED_BESIDE = 64 << 20;
/** Milliseconds between a journal's tellings of what was stored: a page that ends before the next fetches it again. */
const JOURNAL_MS = 500;

export class WeightLoad {
  /** One takes the shard that comes in, the other has the one before, which is checked, stored and uploaded. */
  private readonly chunks: [Chunk, Chunk];
  private readonly outcome: Outcome;
  /** Lines that the journal does not have yet. */
  private unnoted = "";
  /** The last writing of the journal. It ends before the load does, which throws what it throws. */
  private noting: Promise<void> = Promise.resolve();
  private hashing: Hashing | null = null;
  /** Milliseconds waited for each; a shard comes in while the one before is finished. */
  private readonly waited = { source: 0, digest: 0, store: 0, target: 0 };

  /**
   * `told` is called with the offset that is reached, `hash` with the start and the bytes of each shard. `assets` has the
   * script of the worker that hashes; null where all shards are stored.
   */
  constructor(
    private readonly plan: LoadPlan,
    private readonly assets: Assets | null,
    private readonly target: Target,
    private readonly file: DataFile | null | undefined,
    private readonly told: ((done: number) => void) | null | undefined,
    private readonly source?: Source,
    private readonly backing?: Backing | null,
    private readonly hash?: ((start: number, bytes: Uint8Array<ArrayBuffer>) => void) | null,
  ) {
    const capacity = Math.min(plan.shard, plan.size ?? plan.shard);
    this.chunks = [new Chunk(capacity), new Chunk(capacity)];
    this.outcome = { at: plan.start, kept: [], unsound: [], problem: null };
  }

  /** Load the part of the plan. Throws errors for which Python has no policy. */
  async run(): Promise<Outcome> {
    const { plan, target, file, outcome } = this;
    const begun = performance.now();
    if (await target.takeEarly?.()?.finished(plan, file?.name, this.told ?? (() => {}))) outcome.at = plan.end;
    let before = Promise.resolve();
    const fetched = plan.end - outcome.at - plan.stored.length * plan.shard;
    if (this.assets && (plan.vouched || plan.writes) && fetched >= HASHED_BESIDE)
      this.hashing = new Hashing(this.assets);
    // By the clock and not by shards: the next one of a connection that stalls comes late, or never.
    const clock = plan.journal === null ? undefined : setInterval(() => this.note(), JOURNAL_MS);
    try {
      let { at } = outcome;
      while (at < plan.end && !outcome.problem) {
        if (target.closed) throw new EngineError("ClosedError", "the load was cancelled");
        // Single requests follow one another.
        if (plan.alone) await before;
        if (outcome.problem) break;
        const length = plan.size === null ? plan.shard : Math.min(plan.shard, plan.size - at);
        const shard = await this.come(at, length, before);
        // The target takes shards in order, and none after a problem but that of the disk.
        await before;
        if (shard === null || (outcome.problem && outcome.problem !== "write")) break;
        before = this.finish(at, shard);
        // A failure is not reported before this is awaited.
        before.catch(() => undefined);
        at += shard.found;
        if (shard.found < length) break;
      }
    } finally {
      clearInterval(clock);
      // The shard before is finished whatever happens, and so is the journal.
      await before.finally(() => {
        this.hashing?.close();
        return this.noting;
      });
      await this.secure();
      await this.note();
      const waited = Object.entries(this.waited).map(([what, ms]) => [`${what}_ms`, Math.round(ms)] as const);
      tracer.add("load", "a file of weights", begun, performance.now(), {
        bytes: outcome.at - plan.start,
        hashed_beside: this.hashing?.beside ?? 0,
        ...Object.fromEntries(waited),
      });
    }
    return outcome;
  }

  /** Bring a shard in: into a chunk, or to the target at once; null where there is a problem. */
  private async come(at: number, length: number, before: Promise<void>): Promise<Shard | null> {
    const { plan, target, file, outcome } = this;
    const number = Math.floor(at / plan.shard);
    const wanted = target.wants(at, length);
    const here = plan.stored.includes(number);
    const direct = plan.verifies || this.hash ? null : file?.direct;
    if (wanted && here && direct) {
      await before;
      if (outcome.problem) return null;
      if (await this.wait("target", () => target.put(at, length, direct)))
        return { found: length, chunk: null, number, wanted, digest: null };
    }
    if (!wanted && plan.journal === null) return { found: length, chunk: null, number, wanted, digest: null };
    this.chunks.reverse();
    const [chunk] = this.chunks;
    const fresh = !here || !(await this.isSound(chunk, at, number, length));
    const found = fresh ? await this.fetch(chunk, at, number, length) : length;
    if (outcome.problem && outcome.problem !== "write") return null;
    const digest = fresh && (this.expected(number) || plan.writes) ? this.sha256(chunk, found) : null;
    // A failure is not reported before this is awaited.
    digest?.catch(() => undefined);
    return { found, chunk, number, wanted, digest };
  }

  /** Check a shard that came in, store it and upload it. */
  private async finish(at: number, { found, chunk, number, wanted, digest }: Shard): Promise<void> {
    if (chunk) {
      if (digest && !(await this.keep(chunk, at, number, found, digest))) return;
      this.hash?.(at, chunk.view(found));
      const read: ReadAt = (into, from) => chunk.copy(into, from - at);
      if (wanted && found > 0) await this.wait("target", () => this.target.put(at, found, read));
    }
    this.outcome.at = at + found;
    this.told?.(this.outcome.at);
  }

  /** Read a stored shard; whether it is what its digest says, where it is compared. */
  private async isSound(chunk: Chunk, at: number, shard: number, length: number): Promise<boolean> {
    const { plan, outcome } = this;
    try {
      const found = await this.wait("store", () => this.file!.read(chunk, at, length));
      if (found === length && (!plan.verifies || (await chunk.sha256(length)) === plan.digests[shard])) return true;
    } catch (error) {
      this.stop("read", "StorageError", error);
      return true;
    }
    outcome.unsound.push(shard);
    return false;
  }

  /** Fetch a shard, without a source from the file; returns its bytes. */
  private async fetch(chunk: Chunk, at: number, shard: number, length: number): Promise<number> {
    const { plan, source, file } = this;
    if (!source) return this.wait("store", () => file!.read(chunk, at, length));
    let found = 0;
    try {
      found = await this.wait("source", async () => {
        if (plan.alone) return source.readAt(chunk, at, length);
        if (source.position !== at || source.end === at) await source.seek(at, this.endOfRequest(shard));
        return source.read(chunk, length);
      });
      if (!plan.alone) this.expectNext();
      if (found < length && plan.size !== null) {
        throw new EngineError("BrokenDownloadError", `the server sent ${found} of ${length} bytes`);
      }
    } catch (error) {
      this.stop("source", "BrokenDownloadError", error);
    }
    return found;
  }

  /** Send the next request once half of this one has come: the answer is then there at its end. */
  private expectNext(): void {
    const { plan, source } = this;
    const { end, position } = source!;
    if (end === null || position === null || 2 * (end - position) > plan.request) return;
    const next = end / plan.shard;
    if (end < plan.end && !plan.stored.includes(next)) source!.expect(end, this.endOfRequest(next));
  }

  /** The end of one request: that of the run of shards that are missing. Null is the end of the file. */
  private endOfRequest(shard: number): number | null {
    const { plan } = this;
    if (plan.size === null) return null;
    const next = plan.stored.find((one) => one > shard) ?? Infinity;
    const end = Math.min(next, shard + Math.max(1, Math.floor(plan.request / plan.shard))) * plan.shard;
    return end >= plan.size ? null : end;
  }

  /**
   * Compare a shard that was fetched with its digest, and store it; whether it may be used. The loop stops after it if
   * there is a problem.
   */
  private async keep(
    chunk: Chunk,
    at: number,
    shard: number,
    length: number,
    hashing: Promise<string>,
  ): Promise<boolean> {
    const { plan, outcome } = this;
    const expected = this.expected(shard);
    const digest = await this.wait("digest", () => hashing);
    if (expected && digest !== expected) {
      Object.assign(outcome, { problem: "digest", message: digest });
      return false;
    }
    if (!plan.writes || outcome.problem === "write") return true;
    try {
      await this.wait("store", () => this.file!.write(chunk, at, length));
      this.unnoted += JSON.stringify([shard, digest]) + "\n";
      outcome.kept.push([shard, digest]);
    } catch (error) {
      this.stop("write", "StorageError", error);
    }
    return true;
  }

  /** Begun as soon as a shard is there: the one before is stored and uploaded meanwhile. */
  private sha256(chunk: Chunk, length: number): Promise<string> {
    return this.hashing ? this.hashing.sha256(chunk, length) : chunk.sha256(length);
  }

  /** The digest that the file came with; null without one. */
  private expected(shard: number): string | null {
    return (this.plan.vouched && this.plan.digests[shard]) || null;
  }

  /** Record in the journal what was stored. A download that goes on after a crash compares it with its digests. */
  private note(): Promise<void> {
    this.noting = this.noting.then(() => this.append());
    // A failure is not reported before this is awaited.
    this.noting.catch(() => undefined);
    return this.noting;
  }

  private async append(): Promise<void> {
    const { unnoted, plan } = this;
    this.unnoted = "";
    try {
      if (unnoted && plan.journal !== null) await this.backing!.appendText(plan.journal, unnoted);
    } catch (error) {
      this.stop("write", "StorageError", error);
    }
  }

  /** Have the disk hold what was stored before a record vouches for it. */
  private async secure(): Promise<void> {
    try {
      if (this.outcome.kept.length) await this.wait("store", () => this.file!.flush());
    } catch (error) {
      this.stop("write", "StorageError", error);
    }
  }

  /** Do some work and count the time. */
  private async wait<T>(what: keyof WeightLoad["waited"], work: () => T | Promise<T>): Promise<T> {
    const begun = performance.now();
    try {
      return await work();
    } finally {
      this.waited[what] += performance.now() - begun;
    }
  }

  /** Stop for an error with this code; throws any other. */
  private stop(problem: Outcome["problem"], code: EngineErrorCode, error: unknown): void {
    if (!(error instanceof EngineError) || error.code !== code) throw error;
    Object.assign(this.outcome, { problem, message: error.message, wait: error.retryAfter });
  }
}

/** The result of `come`. */
interface Shard {
  /** Its bytes. */
  found: number;
  /** It is in there; null if nothing is left to be done. */
  chunk: Chunk | null;
  number: number;
  wanted: boolean;
  /** Its SHA-256 as hex, if it was fetched and is to be compared or stored. */
  digest: Promise<string> | null;
}
