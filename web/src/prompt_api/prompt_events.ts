// Event handlers as attributes, and the progress of a load as events.

/** Handlers of a target by the names of their events, as attributes like `onabort` have them. */
export interface Handlers {
  get(name: string): ((event: any) => any) | null;
  set(name: string, handler: unknown): void;
}

/** Have the handlers of a target called, each in the place among the listeners where it was first set. */
export function handled(target: EventTarget): Handlers {
  const handlers = new Map<string, ((event: Event) => unknown) | null>();
  return {
    get: (name) => handlers.get(name) ?? null,
    set(name, handler) {
      if (!handlers.has(name)) target.addEventListener(name, (event) => handlers.get(name)?.call(target, event));
      handlers.set(name, typeof handler === "function" ? (handler as (event: Event) => unknown) : null);
    },
  };
}

/** The parts that `loaded` of a progress event counts. */
const PARTS = 0x10000;

/** The monitor of a load. */
export class ProgressMonitor extends EventTarget {
  private readonly handlers = handled(this);
  private last = -1;

  get ondownloadprogress(): ((event: ProgressEvent) => any) | null {
    return this.handlers.get("downloadprogress");
  }

  set ondownloadprogress(handler: ((event: ProgressEvent) => any) | null) {
    this.handlers.set("downloadprogress", handler);
  }

  override addEventListener(
    type: string,
    listener: ((event: ProgressEvent) => any) | EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void {
    super.addEventListener(type, listener as EventListener, options);
  }

  /** Send an event for a part of the load, from 0 to 1, unless it is no more than the last one. */
  show(fraction: number): void {
    const loaded = Math.floor(fraction * PARTS) / PARTS;
    if (loaded <= this.last) return;
    this.last = loaded;
    this.dispatchEvent(new ProgressEvent("downloadprogress", { lengthComputable: true, loaded, total: 1 }));
  }
}
