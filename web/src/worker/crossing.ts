// Bytes from Python: a PEP 3118 buffer seen from JavaScript.

import type { PyBufferView, PyProxy } from "pyodide/ffi";

/** Use a Python buffer's bytes in place; the view is valid only during the call. */
export function withBytes<T>(data: PyProxy, use: (bytes: Uint8Array<ArrayBuffer>) => T): T {
  const view = (data as unknown as { getBuffer(type: "u8"): PyBufferView }).getBuffer("u8");
  try {
    return use(view.data as Uint8Array<ArrayBuffer>);
  } finally {
    view.release();
  }
}

/** A copy of a Python buffer's bytes, to keep across an await. */
export function copyBytes(data: PyProxy): Uint8Array<ArrayBuffer> {
  return withBytes(data, (bytes) => bytes.slice());
}
