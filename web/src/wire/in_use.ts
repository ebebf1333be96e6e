// Keeps a handle of a file system, or the reader of a stream, while a call of it is under way.
//
// Chromium 156 never settles the promise of a call whose handle, or whose reader of a Blob's stream, is collected as
// garbage before the answer.

const inUse = new Set<{ handle: object }>();

/** Call something of a handle or reader, which is referred to until the call has ended. */
export async function using<H extends object, T>(handle: H, call: (handle: H) => Promise<T>): Promise<T> {
  const held = { handle };
  inUse.add(held);
  try {
    return await call(handle);
  } finally {
    inUse.delete(held);
  }
}
