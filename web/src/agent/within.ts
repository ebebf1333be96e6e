// Work that ends in time.

/**
 * The result of the work, which gets a signal that aborts with `signal` or after `ms` milliseconds. Rejects then, whether or
 * not the work heeds it.
 */
export async function within<T>(
  ms: number,
  signal: AbortSignal,
  work: (signal: AbortSignal) => T | Promise<T>,
): Promise<T> {
  signal.throwIfAborted();
  const own = new AbortController();
  const timer = setTimeout(() => own.abort(new Error(`there was no result after ${ms} ms, the limit`)), ms);
  const abort = (): void => own.abort(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  const ended = new Promise<never>((_, reject) =>
    own.signal.addEventListener("abort", () => reject(own.signal.reason as Error), { once: true }),
  );
  try {
    return await Promise.race([ended, (async () => work(own.signal))()]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
  }
}
