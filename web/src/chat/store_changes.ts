// Stores a chat's conversation after each change, and again and again while an answer grows.

/** Milliseconds between two times that an answer is stored while it grows. */
const GROWING_MS = 1500;

/** A value of JSON, and the function that stores it. */
export interface Change {
  value: unknown;
  put: () => Promise<void>;
}

export class StoreChanges {
  /** Resolves once everything so far is stored. */
  ended: Promise<void> = Promise.resolve();
  /** The stored value as JSON; empty if it is not known. */
  private stored = "";
  /** How many stores have not ended. */
  private underWay = 0;
  private due: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly chat: { readonly busy: boolean },
    /** The conversation that the chat shows; null if it is not to be stored. */
    private readonly shown: () => Change | null,
    /** Called with the error of a store that failed; the next change stores the conversation again. */
    private readonly fail: (error: unknown) => void,
  ) {}

  /** Take what the chat shows as stored. */
  begin(): void {
    clearTimeout(this.due);
    this.stored = jsonOf(this.shown());
  }

  /** Whether all that the chat shows is stored. */
  get settled(): boolean {
    return !this.underWay && jsonOf(this.shown()) === this.stored;
  }

  /** Store the conversation after `delay` milliseconds, if it changed. */
  soon(delay: number): void {
    clearTimeout(this.due);
    this.due = setTimeout(() => this.store(), delay);
  }

  /** Store the conversation if it changed, after what is being stored. */
  store(): void {
    clearTimeout(this.due);
    const shown = this.shown();
    if (shown && this.chat.busy) this.soon(GROWING_MS);
    const now = jsonOf(shown);
    if (now === this.stored) return;
    this.stored = now;
    if (!shown) return;
    this.underWay++;
    this.ended = this.ended
      .then(shown.put)
      .catch((error: unknown) => {
        if (this.stored === now) this.stored = "";
        this.fail(error);
      })
      .finally(() => this.underWay--);
  }
}

function jsonOf(shown: Change | null): string {
  return shown ? JSON.stringify(shown.value) : "";
}
