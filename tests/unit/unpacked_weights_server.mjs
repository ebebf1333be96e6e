// Answers a line of JSON, {weight, data}, by the bytes that unpack() makes of a file's data; all bytes are in base64.

import { createInterface } from "node:readline";
import { unpack } from "../../web/src/worker/unpacked_weights.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { weight, data } = JSON.parse(line);
  const made = new ArrayBuffer(weight.bytes);
  unpack(weight, new Map([[weight.file, new Uint8Array(Buffer.from(data, "base64"))]]), made);
  process.stdout.write(`${Buffer.from(made).toString("base64")}\n`);
}
