// Answers a line of JSON, {wide, files}, by the bytes that widened() makes of the files; all bytes are in base64.

import { createInterface } from "node:readline";
import { widened } from "../../web/src/wide_weights.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { wide, files } = JSON.parse(line);
  const read = new Map(
    Object.entries(files).map(([name, data]) => [name, new Uint8Array(Buffer.from(data, "base64"))]),
  );
  process.stdout.write(`${Buffer.from(widened(wide, read)).toString("base64")}\n`);
}
