// Answers a line of JSON, {what, rows, width, bits}, by the rows that narrowRows() or widenRows() makes; rows are in base64.

import { createInterface } from "node:readline";
import { narrowRows, widenRows } from "../../web/src/worker/narrow_rows.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { what, rows, width, bits } = JSON.parse(line);
  const given = new Uint8Array(Buffer.from(rows, "base64"));
  const made = (what === "narrow" ? narrowRows : widenRows)(given, width, bits);
  process.stdout.write(`${Buffer.from(made).toString("base64")}\n`);
}
