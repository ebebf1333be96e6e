// An upload of stored weights that is started ahead, by the plan of the last load. A request for the same buffers and
// pieces of the same file finds it done or under way; anything else ends it, and its bytes are not used.

import type { DataFile } from "../storage/backing";
import { type EarlyLoad, type LoadPlan, WeightLoad } from "../storage/weight_load";
import type { Category } from "./device";
import type { Change } from "./rearranger";
import type { WeightUpload } from "./weights";

/** See capstan.device.webgpu.gpu_engine.WeightPiece. */
export type PieceFields = [buffer: number, offset: number, length: number, at: number, change: Change | null];

/** An upload as capstan.weights.store notes it; pieces name their buffers by their places in `requests`. */
export interface UploadPlan {
  /** The stored file. */
  data: string;
  load: LoadPlan;
  owner: string;
  requests: [label: string, bytes: number, category: Category][];
  pieces: PieceFields[];
}

export class EarlyUpload implements EarlyLoad {
  /** Its buffers' handles; rejects where there is no memory for them. */
  readonly handles: Promise<number[]>;
  /** Whether the buffers were taken. */
  taken = false;
  private readonly done: Promise<boolean>;
  private made: number[] = [];
  private upload: WeightUpload | null = null;
  private useful = true;
  private stopped = false;
  private bytes = 0;

  constructor(
    readonly plan: UploadPlan,
    open: () => Promise<DataFile | null>,
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
  isRequested(pieces: PieceFields[]): boolean {
    if (!this.taken || !pieces.some(([buffer]) => this.made.includes(buffer))) return false;
    this.useful = JSON.stringify(pieces) === JSON.stringify(this.pieces());
    return true;
  }

  /** Whether it does what a load plans, with the file `data`: wait until that is on the GPU. If not, it ends. */
  async finished(load: LoadPlan, data: string | undefined, told: (done: number) => void): Promise<boolean> {
    if (!this.useful || data !== this.plan.data || JSON.stringify(load) !== JSON.stringify(this.plan.load)) {
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
    if (this.upload) this.upload.closed = true;
    await this.done;
  }

  private async perform(
    open: () => Promise<DataFile | null>,
    begin: (pieces: PieceFields[]) => WeightUpload,
  ): Promise<boolean> {
    await this.handles;
    const file = await open();
    if (!file || this.stopped) {
      file?.close();
      return false;
    }
    const upload = (this.upload = begin(this.pieces()));
    const told = (bytes: number): void => this.told((this.bytes = bytes));
    try {
      const { at } = await new WeightLoad(this.plan.load, null, upload, file, told).run();
      await upload.finish();
      return at === this.plan.load.end;
    } finally {
      file.close();
      upload.close();
    }
  }

  private pieces(): PieceFields[] {
    return this.plan.pieces.map(([place, ...rest]) => [this.made[place]!, ...rest]);
  }
}
