// The pages that a worker answers: one, or those that share it. Their requests take turns, page by page.

import type { Attached, CapstanEvent, FromWorker, Request } from "../wire/protocol";

/** A request that waits; `tab` is null for one of the worker's own. */
export interface Asked {
  tab: Tab | null;
  id: number;
  request: Request;
  attached?: Attached | null;
}

/** The requests of conversations, whose caches are kept for each session. */
const CONVERSES = ["chat", "alternatives", "end_session", "save_session", "restore_session", "open_session"];
/** Events of scripts, which only the page hears that runs them. */
const OF_SCRIPTS = ["stdout", "stderr"];

/** A page; `name` is null for one that has the worker to itself. */
export class Tab {
  readonly waiting: Asked[] = [];
  /** The names of its sessions in Python. */
  readonly sessions = new Set<string>();
  /** Ends the waiting for its end. */
  left = (): void => {};

  constructor(
    readonly post: (message: FromWorker) => void,
    readonly name: string | null,
    /** Whether it wants events of the kind `bytes`. */
    readonly bytes: boolean,
  ) {}

  /** A request with the session of this page alone, should pages share the worker. */
  owned(request: Request): Request {
    if (this.name === null || !CONVERSES.includes(request?.kind)) return request;
    const named = request as { session?: string | null };
    const session = `${this.name} ${named.session ?? ""}`;
    if (request.kind === "end_session") this.sessions.delete(session);
    else this.sessions.add(session);
    return { ...request, session } as Request;
  }
}

export class Tabs {
  /** In the order of their turns. */
  private readonly tabs = new Set<Tab>();
  private readonly own: Asked[] = [];
  /** The last request that was begun; events are about it. */
  private asked: Asked | null = null;
  private under = false;

  get count(): number {
    return this.tabs.size;
  }

  /** Whether a request is being answered. */
  get answering(): boolean {
    return this.under;
  }

  /** The page whose request is, or was, answered last. */
  get current(): Asked | null {
    return this.asked;
  }

  add(tab: Tab): void {
    this.tabs.add(tab);
  }

  /** Forget a page, with the requests that wait, and give back what its sessions hold; false if it has left before. */
  remove(tab: Tab): boolean {
    if (!this.tabs.delete(tab)) return false;
    tab.left();
    tab.waiting.length = 0;
    for (const session of tab.sessions) this.own.push({ tab: null, id: 0, request: { kind: "end_session", session } });
    return true;
  }

  /** The next request, which is answered from now on: that of the page whose last turn is the longest ago. */
  begin(): Asked | null {
    const tab = [...this.tabs].find(({ waiting }) => waiting.length);
    const next = this.own.shift() ?? tab?.waiting.shift() ?? null;
    if (next?.tab) {
      this.tabs.delete(next.tab);
      this.tabs.add(next.tab);
    }
    if (next) [this.asked, this.under] = [next, true];
    return next;
  }

  end(): void {
    this.under = false;
  }

  /** Take a request back that was not begun; whether it was there. */
  takeBack(tab: Tab, id: number): boolean {
    const at = tab.waiting.findIndex((asked) => asked.id === id);
    if (at >= 0) tab.waiting.splice(at, 1);
    return at >= 0;
  }

  /** Ask a page: that of the request under way, or the first. */
  ask(message: FromWorker): void {
    (this.asked?.tab ?? [...this.tabs][0])?.post(message);
  }

  post(message: FromWorker): void {
    for (const tab of this.tabs) tab.post(message);
  }

  /**
   * Send an event of a request to its page. Between requests it is about the model, so that all pages hear of it; so do
   * those that wait for a load which is under way.
   */
  tell(event: CapstanEvent): void {
    for (const tab of this.tabs) {
      const id = this.idFor(tab, event);
      if (id !== null && (event.kind !== "bytes" || tab.bytes)) tab.post({ tag: "event", id, event });
    }
  }

  private idFor(tab: Tab, { kind }: CapstanEvent): number | null {
    if (!this.asked) return 0;
    if (tab === this.asked.tab) return this.asked.id;
    if (OF_SCRIPTS.includes(kind)) return null;
    if (!this.under) return 0;
    const [first] = tab.waiting;
    return this.asked.request.kind === "load" && first?.request.kind === "load" ? first.id : null;
  }
}
