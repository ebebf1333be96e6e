// The wait of <capstan-chat> for its model: the reason is shown, and what the user sends before is kept and sent after it.

import type { LoadProgress } from "capstan-webgpu";
import { loadStatus } from "../page/progress";

const KEPT = "Your message is sent when the model is ready.";

export class Wait {
  /** Whether the model is being loaded. */
  loading = false;
  /** Whether the text in the field is sent after the load. */
  sends = false;
  /** Resolves when the load has ended. */
  ended = Promise.resolve();
  private resolve = (): void => {};
  private progress: LoadProgress | null = null;

  /** `show` shows a line with a bar, `changed` is called when `loading` or `sends` has changed. */
  constructor(
    private readonly show: (text: string, done: number | null, total: number) => void,
    private readonly changed: () => void,
  ) {}

  begin(): void {
    Object.assign(this, { loading: true, sends: false, progress: null });
    this.ended = new Promise((resolve) => (this.resolve = resolve));
    this.update();
  }

  /** Show the progress of the load. */
  take(progress: LoadProgress): void {
    this.progress = { ...progress };
    this.tell();
  }

  /** Have the text in the field sent after the load, or not. */
  send(on: boolean): void {
    this.sends = on;
    this.update();
  }

  /** The load has ended. Returns whether the text in the field is to be sent. */
  end(): boolean {
    const { sends } = this;
    if (this.loading) {
      Object.assign(this, { loading: false, sends: false });
      this.show("", null, 0);
      this.changed();
      this.resolve();
    }
    return sends;
  }

  private update(): void {
    this.changed();
    this.tell();
  }

  private tell(): void {
    const { progress } = this;
    const text = this.sends ? `${KEPT} ${this.reason()}` : this.reason();
    this.show(text, progress?.bytes ? progress.fraction : null, 1);
  }

  /** The work that the user waits for, without the words of those who wrote it. */
  private reason(): string {
    if (!this.progress?.bytes) return "Loading the model";
    const { bytes, totalBytes } = this.progress;
    return totalBytes !== null && bytes >= totalBytes ? "Preparing the model" : loadStatus(this.progress);
  }
}
