// Detects whether a worker is alive: it holds a lock during its life, and its page waits for that lock.
//
// A worker that computes for minutes answers no message and lives all the same; one that the browser ended tells
// nobody. The browser gives a lock back when its holder ends, however that came about, and never before.

/** In the worker: hold a lock of this name until the worker ends. Resolves once it is held. */
export function holdLife(name: string): Promise<void> {
  return new Promise((held) => {
    void locks()!.request(name, () => {
      held();
      return new Promise(() => {});
    });
  });
}

/** In the page: a name for a worker's lock; null where there are no locks, as on an insecure origin. */
export function lifeName(): string | null {
  return locks() ? `capstan worker ${crypto.randomUUID()}` : null;
}

/** In the page, once a worker holds its lock: call `ended` when it lives no more. The result ends the waiting. */
export function awaitEnd(name: string, ended: () => void): () => void {
  const waiting = new AbortController();
  locks()!
    .request(name, { signal: waiting.signal }, ended)
    .catch(() => undefined);
  return () => waiting.abort();
}

function locks(): LockManager | undefined {
  return (globalThis.navigator as Navigator | undefined)?.locks;
}
