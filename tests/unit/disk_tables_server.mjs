// Answers a line of JSON: {rows, change} by what unpackRows() makes of rows, {file, data, places} by the parts that
// readParts() reads of a file of that kind; bytes are in base64.

import { createInterface } from "node:readline";
import { unpackRows } from "../../web/src/worker/unpacked_rows.ts";
import { BlobSource } from "../../web/src/worker/storage/source.ts";
import { readParts } from "../../web/src/worker/storage/parts.ts";

/** A file of the browser's storage, which may be read `direct`ly; a picked file is a source. */
function opened(kind, data) {
  const name = `the ${kind} file`;
  if (kind === "picked") return new BlobSource(name, new File([data], name));
  const direct = (into, at) => {
    const part = data.subarray(at, at + into.length);
    into.set(part);
    return part.length;
  };
  const read = async (chunk, start, length) => direct(chunk.view(length), start);
  return { name, direct: kind === "locked" ? direct : null, read };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { rows, change, file, data, places } = JSON.parse(line);
  const bytes = new Uint8Array(Buffer.from(rows ?? data, "base64"));
  let answer;
  try {
    const made = change ? unpackRows(bytes, change) : await readParts(opened(file, bytes), JSON.stringify(places));
    answer = { bytes: Buffer.from(made).toString("base64") };
  } catch ({ code, message }) {
    answer = { code, message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
