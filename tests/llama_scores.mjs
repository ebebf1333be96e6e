// Scores and greedy ids of a GGUF file by the working directory's node-llama-cpp: {file, length, sequences: [[context
// ids, scored ids], ...], prompts: [[ids, most new ones], ...]} on stdin; as stdout's last line `scores`, for each scored
// id [log probability, its logit less the greatest other one], and `ids` behind each prompt. Caches are float32, and
// attention is not the "flash" one, which rounds to float16.

import { createRequire } from "node:module";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const { file, length, sequences, prompts } = JSON.parse(await text(process.stdin));
const found = createRequire(`${process.cwd()}/package.json`).resolve("node-llama-cpp");
const { getLlama } = await import(pathToFileURL(found).href);
const llama = await getLlama({ gpu: false, build: "never", progressLogs: false, logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({
  contextSize: length,
  flashAttention: false,
  experimentalKvCacheKeyType: "F32",
  experimentalKvCacheValueType: "F32",
});
const sequence = context.getSequence();

function score(logits, id) {
  const own = logits.get(id);
  logits.delete(id);
  const others = [...logits.values()];
  const most = Math.max(own, ...others);
  const total = [own, ...others].reduce((sum, value) => sum + Math.exp(value - most), 0);
  return [own - most - Math.log(total), own - Math.max(...others)];
}

const scores = [];
for (const [before, scored] of sequences) {
  await sequence.clearHistory();
  const last = before.length - 1;
  const inputs = [...before, ...scored.slice(0, -1)].map((id, place) =>
    place < last ? id : [id, { generateNext: { logits: true } }],
  );
  const told = await sequence.controlledEvaluate(inputs);
  scores.push(scored.map((id, place) => score(told[last + place].next.logits, id)));
}
const ids = [];
for (const [prompt, most] of prompts) {
  await sequence.clearHistory();
  const picked = [];
  for await (const id of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    picked.push(id);
    if (picked.length === most || model.isEogToken(id)) break;
  }
  ids.push(picked);
}
console.log(JSON.stringify({ scores, ids }));
process.exit(0);
