// Sessions whose inputs and outputs are bound to our buffers: run by onnxruntime-web, or recorded for a tape.

import type { PyProxy } from "pyodide/ffi";
import { copyBytes } from "./crossing";
import type { Json, SessionsCalls } from "./engine_calls";
import { EngineError } from "../wire/errors";
import type { WatchedDevice } from "./gpu/device";
import { DryRecorder, type RecordingObjects } from "./gpu/recorder";
import { submitTimes } from "./gpu/traced_step";
import { Handles } from "./handles";
import { createSession, exclusively, type Ort, releaseUnless } from "./ort";
import { endCapture, giveBack, keepRegistered, submitPending } from "./ort_remedies";
import type { OnnxSession } from "./onnx_sessions";
import { tracer } from "./trace";

/**
 * One bound tensor: a buffer from its start, seen with an ONNX dtype and dims. A size of -1 is each run's number of
 * tokens, -2 that of the positions before it, -3 after it.
 */
interface BoundTensor {
  name: string;
  buffer: number;
  dtype: Ort.Tensor.GpuBufferDataTypes;
  dims: number[];
}

interface Binding {
  session: number;
  feeds: Record<string, Ort.Tensor>;
  fetches: Record<string, Ort.Tensor>;
  /** Feeds and fetches whose sizes change between runs. */
  sized: { feeds: BoundTensor[]; fetches: BoundTensor[] };
  /** The inputs that hold the sequence's length: less one on the GPU, and as it is on the CPU. */
  lengths: FedLengths | null;
}

/** Names of inputs; see capstan.graph.FedLengths. The last two are empty where no cache slides. */
interface FedLengths {
  seqlens_k: string;
  total: string;
  held_seqlens_k: string;
  held_total: string;
}

interface BoundSession {
  /** The session of onnxruntime-web, which the first call makes; only in a turn of onnxruntime-web. */
  ort: () => Promise<Ort.InferenceSession>;
  made: Promise<Ort.InferenceSession> | null;
  /** The owner of the scratch memory that its runs allocate. */
  owner: string;
  /** The error of a run that failed inside onnxruntime-web 1.30, whose next run of the session may never end. */
  failed?: EngineError;
}

export class BoundSessions implements SessionsCalls {
  /** The recordings, from which tapes are made. */
  readonly recordings = new Handles<RecordingObjects>("recording");
  private readonly sessions = new Handles<BoundSession>("session");
  private readonly bindings = new Handles<Binding>("binding");
  /**
   * The length of the run that is queued last, less one, and the same of the positions in sliding caches: i32 each. Runs
   * take turns, so that one of each is enough.
   */
  private readonly last: [GPUBuffer | null, GPUBuffer | null] = [null, null];

  constructor(
    private readonly ort: typeof Ort,
    private readonly watched: WatchedDevice,
    private readonly buffers: Handles<GPUBuffer>,
  ) {}

  async createSession(model: PyProxy, capture: boolean, owner: string, cacheBits: number): Promise<number> {
    const session = this.lazy(copyBytes(model), capture, owner, cacheBits);
    await this.exclusively(owner, session.ort);
    return this.sessions.add(session);
  }

  lazySession(model: PyProxy, owner: string, cacheBits: number): number {
    return this.sessions.add(this.lazy(copyBytes(model), false, owner, cacheBits));
  }

  async makeSession(handle: number): Promise<void> {
    const { owner, ort } = this.sessions.get(handle);
    await this.exclusively(owner, ort);
  }

  private lazy(model: Uint8Array, capture: boolean, owner: string, cacheBits: number): BoundSession {
    const make = async (): Promise<Ort.InferenceSession> => {
      const placement = { device: this.watched.device, capture, cacheBits };
      const made = await createSession(this.ort, model, placement).catch(async (error: unknown) => {
        throw await this.watched.explain(error);
      });
      await releaseUnless(made, () => this.watched.assertHealthy());
      return made;
    };
    const session: BoundSession = { owner, made: null, ort: () => (session.made ??= make()) };
    return session;
  }

  /** A handle for such a session, with which it is bound and recorded. */
  sessionHandle(session: OnnxSession, owner: string): number {
    const made = Promise.resolve(session.session);
    return this.sessions.add({ owner, made, ort: () => made });
  }

  async releaseSession(handle: number): Promise<void> {
    const session = this.sessions.take(handle);
    if (!session) return;
    await this.exclusively(session.owner, async () => {
      // A session that failed to be made has nothing to release.
      const made = await session.made?.catch(() => null);
      await made?.release();
    });
  }

  /** Bind a session's inputs and outputs to whole buffers; `lengths` are Binding.lengths. */
  bind(session: number, feeds: Json, fetches: Json, lengths: Json): number {
    const [inputs, outputs] = [feeds, fetches].map((text) => JSON.parse(text) as BoundTensor[]) as [
      BoundTensor[],
      BoundTensor[],
    ];
    const isSized = ({ dims }: BoundTensor): boolean => Math.min(...dims) < 0;
    this.sessions.get(session);
    const binding: Binding = {
      session,
      feeds: this.tensors(inputs.filter((input) => !isSized(input))),
      fetches: this.tensors(outputs.filter((output) => !isSized(output))),
      sized: { feeds: inputs.filter(isSized), fetches: outputs.filter(isSized) },
      lengths: JSON.parse(lengths) as Binding["lengths"],
    };
    const last = [binding.lengths?.seqlens_k, binding.lengths?.held_seqlens_k];
    for (const [which, name] of last.entries()) {
      const spec = { dataType: "int32", dims: [1] } as const;
      if (name) binding.feeds[name] = this.ort.Tensor.fromGpuBuffer(this.lastLength(which), spec);
    }
    return this.bindings.add(binding);
  }

  unbind(handle: number): void {
    this.bindings.take(handle);
  }

  /**
   * Run a bound session; its results are in the bound buffers, in queue order. `valid` is the number of positions that
   * are valid after the run, for a binding that depends on it, and `tokens` of them are the run's own; sliding caches hold
   * those from `base` on.
   */
  run(handle: number, valid: number, tokens: number, base: number): Promise<void> {
    const { session: bound, feeds, fetches, sized, lengths } = this.bindings.get(handle);
    const session = this.sessions.get(bound);
    return this.exclusively(session.owner, async () => {
      this.watched.assertHealthy();
      if (session.failed) throw session.failed;
      Object.assign(feeds, this.tensors(sized.feeds, tokens, valid));
      Object.assign(fetches, this.tensors(sized.fetches, tokens, valid));
      if (lengths) {
        this.feedLength(feeds, 0, lengths.total, valid);
        if (lengths.held_total) this.feedLength(feeds, 1, lengths.held_total, valid - base);
      }
      let begun = performance.now();
      try {
        const made = await session.ort();
        begun = performance.now();
        await made.run(feeds, fetches);
        const end = performance.now();
        if (tracer.on)
          tracer.submit("onnxruntime-web's run", begun, end, submitTimes(this.watched.device), null, { tokens });
      } catch (thrown) {
        const error = await this.watched.explain(thrown);
        if (error instanceof EngineError) throw error;
        await submitPending(this.ort, this.watched.device).catch(() => undefined);
        session.failed = new EngineError(
          "ValidationError",
          `onnxruntime-web could not run the model, load it again: ${String(error)}`,
        );
        throw session.failed;
      }
    });
  }

  /** Waits for the end of every run and recording, those of cancelled callers too. */
  idle(): Promise<void> {
    return exclusively(() => Promise.resolve());
  }

  /** Record the first run of a captured session without executing it; returns JSON with the recording's handle. */
  record(handle: number): Promise<string> {
    const { session, feeds, fetches } = this.bindings.get(handle);
    return this.exclusively(this.sessions.get(session).owner, async () => {
      const keep = (): void => keepRegistered([...Object.values(feeds), ...Object.values(fetches)], true);
      const recorder = new DryRecorder(this.watched, keep);
      try {
        const made = await this.sessions.get(session).ort();
        await recorder.during(() => made.run(feeds, fetches));
      } catch (thrown) {
        const error = await this.watched.explain(thrown);
        this.watched.assertHealthy();
        await this.endCapture();
        throw error instanceof EngineError
          ? error
          : new EngineError("TapeError", `onnxruntime-web could not capture the decode step: ${String(error)}`);
      }
      const data = recorder.data();
      return JSON.stringify({ handle: this.recordings.add(recorder.objects), ...data });
    });
  }

  private async endCapture(): Promise<void> {
    try {
      await endCapture(this.ort, this.watched.device, this.lastLength());
    } catch (error) {
      this.watched.assertHealthy();
      throw new EngineError(
        "ValidationError",
        `onnxruntime-web captures a run that failed and cannot be told to end it; open the page again: ${String(error)}`,
      );
    }
  }

  /** A recorded binding will not be run by ORT again; its buffers need not stay registered. */
  retire(handle: number): void {
    const { feeds, fetches } = this.bindings.get(handle);
    const tensors = [...Object.values(feeds), ...Object.values(fetches)];
    keepRegistered(tensors, false);
    // A failure shows where the device is used next.
    void exclusively(() => giveBack(this.ort, this.watched.device, tensors)).catch(() => undefined);
  }

  dropRecording(handle: number): void {
    this.recordings.take(handle);
  }

  private tensors(bound: BoundTensor[], tokens = 0, valid = 0): Record<string, Ort.Tensor> {
    const sizes = [tokens, valid - tokens, valid];
    const tensor = ({ buffer, dtype, dims: told }: BoundTensor): Ort.Tensor => {
      const dims = told.map((size) => (size < 0 ? sizes[-1 - size]! : size));
      if (!dims.includes(0)) return this.ort.Tensor.fromGpuBuffer(this.buffers.get(buffer), { dataType: dtype, dims });
      // A buffer has no part of 0 bytes.
      return dtype === "float16"
        ? new this.ort.Tensor(dtype, new Uint16Array(0), dims)
        : new this.ort.Tensor("float32", new Float32Array(0), dims);
    };
    return Object.fromEntries(bound.map((spec) => [spec.name, tensor(spec)]));
  }

  private feedLength(feeds: Binding["feeds"], which: number, total: string, length: number): void {
    this.watched.write(this.lastLength(which), 0, new Uint8Array(Int32Array.of(length - 1).buffer));
    feeds[total] = new this.ort.Tensor("int32", Int32Array.of(length), []);
  }

  private lastLength(which = 0): GPUBuffer {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    return (this.last[which] ??= this.watched.buffer("kernels", "lengths", {
      label: "last position",
      size: 16,
      usage,
    }));
  }

  /** A turn of onnxruntime-web; the buffers it allocates meanwhile are `owner`'s. */
  exclusively<T>(owner: string, action: () => Promise<T>): Promise<T> {
    return exclusively(async () => {
      this.watched.scratchOwner = owner;
      try {
        return await action();
      } finally {
        this.watched.scratchOwner = "";
      }
    });
  }
}
