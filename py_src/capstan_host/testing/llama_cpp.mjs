// Greedy ids of a GGUF file by node-llama-cpp: {file, prompt, tokens, from} on stdin, {ids, release} as stdout's last line.
// The package is the one of the folder `from`, or of a folder above it.

import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const { file, prompt, tokens, from } = JSON.parse(await text(process.stdin));
let found;
try {
  found = createRequire(join(from, "package.json")).resolve("node-llama-cpp");
} catch (error) {
  console.error(`no package node-llama-cpp: ${error.message.split("\n")[0]}`);
  process.exit(1);
}
const { getLlama } = await import(pathToFileURL(found).href);
const llama = await getLlama({ gpu: false, build: "never", progressLogs: false, logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: prompt.length + tokens });
const ids = [];
for await (const id of context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
  ids.push(id);
  if (ids.length === tokens || model.isEogToken(id)) break;
}
console.log(JSON.stringify({ ids, release: llama.llamaCppRelease.release }));
process.exit(0);
