// SHA-256: the browser's, else, in pages that are no secure context and have none, one in JavaScript.

import { sha256 as computed } from "@noble/hashes/sha2.js";

export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const subtle = globalThis.crypto?.subtle as SubtleCrypto | undefined;
  return subtle ? new Uint8Array(await subtle.digest("SHA-256", bytes)) : computed(bytes);
}

/** Bytes as lower-case digits. */
export function hex(bytes: Uint8Array): string {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
