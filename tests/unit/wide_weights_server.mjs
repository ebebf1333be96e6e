// Answers a line of JSON, {wide, files}, by the bytes that widen() makes of the files; all bytes are in base64.

import { createInterface } from "node:readline";
import { widen } from "../../web/src/worker/wide_weights.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { wide, files } = JSON.parse(line);
  const read = new Map(
    Object.entries(files).map(([name, data]) => [name, new Uint8Array(Buffer.from(data, "base64"))]),
  );
  const made = new ArrayBuffer(4 * wide.n * wide.k);
  widen(wide, read, made);
  process.stdout.write(`${Buffer.from(made).toString("base64")}\n`);
}
