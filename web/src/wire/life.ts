// Detects whether a worker or a page is alive: it holds a lock during its life, and the other side waits for that lock.
//
// A worker that computes for minutes answers no message but is alive; one that the browser ended notifies no page. The
// browser gives a lock back when its holder ends, however that came about, and never before.

/** Hold a lock of this name until this worker or page ends, or `end` is called. Resolves once it is held. */
export function holdLife(name: string): Promise<{ end: () => void }> {
  return new Promise((held) => {
    void locks()!.request(name, () => {
      let end = (): void => {};
      const ended = new Promise<void>((resolve) => (end = resolve));
      held({ end });
      return ended;
    });
  });
}

/** A name for a lock of a worker or page; null where there are no locks, as on an insecure origin. */
export function lifeName(): string | null {
  return locks() ? `capstan worker ${crypto.randomUUID()}` : null;
}

/** Once the other side holds its lock: call `ended` when it lives no more. The result ends the waiting. */
export function awaitEnd(name: string, ended: () => void): () => void {
  const waiting = new AbortController();
  locks()!
    .request(name, { signal: waiting.signal }, ended)
    .catch(() => undefined);
  return () => waiting.abort();
}

/** Whether a page or worker holds a lock of this name. */
export async function isHeld(name: string): Promise<boolean> {
  const { held = [] } = await locks()!.query();
  return held.some((lock) => lock.name === name);
}

/** Run a function while no other caller holds a lock of this name. */
export function whileAlone<T>(name: string, action: () => Promise<T>): Promise<T> {
  return locks()!.request(name, action) as Promise<T>;
}

function locks(): LockManager | undefined {
  return (globalThis.navigator as Navigator | undefined)?.locks;
}
