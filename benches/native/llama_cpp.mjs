// Native llama.cpp on the GPU: ms to the first token of a prompt, and ms a token after it, greedy, medians of rounds.
//
// usage: npm ci --prefix benches/native && node benches/native/llama_cpp.mjs FILE.gguf [TOKENS [ROUNDS]]
//
// Prompts have 16 and 512 words, as those that the bench has for a GGUF file. A round before the first one is not counted.

import { getLlama } from "node-llama-cpp";

const WORDS = "the of and to in is that for it as was with be by on not".split(" ");
const LENGTHS = [16, 512];
const [file, tokens = "256", rounds = "3"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node llama_cpp.mjs FILE.gguf [TOKENS [ROUNDS]]");
  process.exit(2);
}

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

const llama = await getLlama({ gpu: "vulkan", build: "never", progressLogs: false });
const model = await llama.loadModel({ modelPath: file, gpuLayers: "max" });
const context = await model.createContext({ contextSize: 2048 });
const sequence = context.getSequence();

async function round(length) {
  await sequence.clearHistory();
  const text = Array.from({ length }, (_, place) => ` ${WORDS[place % WORDS.length]}`).join("");
  const prompt = model.tokenize(text);
  const begun = performance.now();
  let first = 0;
  let count = 0;
  for await (const _ of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    count++;
    if (count === 1) first = performance.now();
    if (count === Number(tokens)) break;
  }
  return { prompt: prompt.length, first: first - begun, each: (performance.now() - first) / (count - 1), count };
}

const found = { file, gpu: llama.gpu, devices: await llama.getGpuDeviceNames(), release: llama.llamaCppRelease };
for (const length of LENGTHS) {
  await round(length);
  const measured = [];
  for (let turn = 0; turn < Number(rounds); turn++) measured.push(await round(length));
  const [{ prompt, count }] = measured;
  found[`${prompt} tokens`] = {
    "ms to the first token": median(measured.map(({ first }) => first)),
    "ms a token": median(measured.map(({ each }) => each)),
    tokens: count,
  };
}
console.log(JSON.stringify(found, null, 1));
process.exit(0);
