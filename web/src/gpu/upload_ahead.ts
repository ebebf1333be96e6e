// An upload of stored weights that is started ahead, by the plan of the last load. Whoever asks for the same buffers
// and pieces of the same file finds it done or under way; anything else ends it, and its bytes are not used.

import { type LoadPlan, pour, type ReadAt } from "../storage/load";
import type { Category } from "./device";
import type { WeightUpload } from "./weights";

type Turned = [rows: number, columns: number, bits: number, flipped: boolean];

/** [buffer, offset, length, at, turn, beside, narrow]; see capstan.device.webgpu.engine.WeightPiece. */
export type PieceFields = [
  number,
  number,
  number,
  number,
  Turned | null,
  [row: number, stride: number] | null,
  boolean,
];

/** An upload as capstan.weights.store notes it; pieces name their buffers by their places in `requests`. */
export interface UploadPlan {
  /** The stored file, its size, and that of its shards. */
  data: string;
  size: number;
  shard: number;
  owner: string;
  requests: [label: string, bytes: number, category: Category][];
  pieces: PieceFields[];
}

/** A stored file that is open for reading. */
export interface ReadableFile {
  size: number;
  read: ReadAt;
  close(): void;
}

export class UploadAhead {
  /** Its buffers' handles; rejects where there is no memory for them. */
  readonly handles: Promise<number[]>;
  /** Whether somebody took the buffers. */
  taken = false;
  private readonly done: Promise<boolean>;
  private made: number[] = [];
  private useful = true;
  private stopped = false;
  private bytes = 0;

  constructor(
    readonly plan: UploadPlan,
    open: () => Promise<ReadableFile | null>,
    create: (requests: string, owner: string) => Promise<string>,
    begin: (pieces: PieceFields[]) => WeightUpload,
    private told: (done: number) => void,
  ) {
    this.handles = create(JSON.stringify(plan.requests), plan.owner).then(
      (made) => (this.made = JSON.parse(made) as number[]),
    );
    this.done = this.perform(open, begin).catch(() => false);
  }

  /** Whether these are the buffers that it fills. */
  makes(requests: [string, number, Category][], owner: string): boolean {
    return owner === this.plan.owner && JSON.stringify(requests) === JSON.stringify(this.plan.requests);
  }

  /** Whether these pieces belong to its buffers. The upload is useful only if it was made for the same pieces. */
  isAskedFor(pieces: PieceFields[]): boolean {
    if (!this.taken || !pieces.some(([buffer]) => this.made.includes(buffer))) return false;
    this.useful = JSON.stringify(pieces) === JSON.stringify(this.pieces());
    return true;
  }

  /**
   * Whether it does what a load plans, with the file `data` as it is stored: wait until that is on the GPU. If not, it
   * ends.
   */
  async finished(load: LoadPlan, data: string | null, told: (done: number) => void): Promise<boolean> {
    const { size, shard } = this.plan;
    const whole = load.start === 0 && load.end === size && load.stored.length * shard >= size;
    if (!this.useful || !whole || data !== this.plan.data) {
      await this.stop();
      return false;
    }
    told(this.bytes);
    this.told = told;
    return this.done;
  }

  /** End it where it is; nothing is written any more once this is over. */
  async stop(): Promise<void> {
    this.stopped = true;
    await this.done;
  }

  private async perform(
    open: () => Promise<ReadableFile | null>,
    begin: (pieces: PieceFields[]) => WeightUpload,
  ): Promise<boolean> {
    const { size, shard } = this.plan;
    await this.handles;
    const file = await open();
    if (!file) return false;
    const upload = begin(this.pieces());
    const read: ReadAt = (into, at) => (this.stopped ? 0 : file.read(into, at));
    const told = (bytes: number): void => this.told((this.bytes = bytes));
    try {
      if (file.size !== size || (await pour(upload, read, 0, size, shard, told)) < size) return false;
      await upload.finish();
      return true;
    } finally {
      file.close();
      upload.close();
    }
  }

  private pieces(): PieceFields[] {
    return this.plan.pieces.map(([place, ...rest]) => [this.made[place]!, ...rest]);
  }
}
