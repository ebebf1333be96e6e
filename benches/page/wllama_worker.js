// Contender: wllama (llama.cpp on WebGPU), its own file as published, told token ids, over the model folder's GGUF.
import { serve, timed } from "./worker.js";
import { Wllama } from "/bench/wllama/index.min.js";

let engine = null;
let loaded = null;
let told = [];

/** What llama.cpp says of the device that it chose, so that a run on the CPU is seen. */
const TELLING = /webgpu|offload|using device/i;
const listen = (...words) => {
  const line = words.join(" ").trim();
  if (TELLING.test(line) && told.length < 40) told.push(line.slice(0, 300));
};

async function load({ model, counting }) {
  if (counting) throw new Error("wllama makes its device in a worker of its own, where nothing is counted");
  await close();
  const start = performance.now();
  told = [];
  engine = new Wllama(
    { default: new URL("/bench/wllama/wllama.wasm", location.href).href },
    { logger: { debug: listen, log: listen, warn: listen, error: listen }, allowOffline: true },
  );
  const folder = `/models/${encodeURIComponent(model)}/`;
  const { context_length } = (await (await fetch(`${folder}genai_config.json`)).json()).model;
  await engine.loadModelFromUrl(new URL(`${folder}model.gguf`, location.href).href, {
    n_ctx: Math.min(context_length, 4096),
    n_parallel: 1,
  });
  loaded = model;
  return { load_ms: performance.now() - start, adapter: told };
}

/** Pick `tokens` ids after the prompt; an id is told where the engine tells it, else null. */
async function generate({ model, prompt, tokens, sampling, counting, log_probabilities }) {
  if (loaded !== model) await load({ model, counting });
  return timed(async (onToken) => {
    await engine.createCompletion({
      prompt,
      max_tokens: tokens,
      ignore_eos: true,
      cache_prompt: false,
      ...(sampling ?? { temperature: 0, top_k: 1 }),
      ...(log_probabilities ? { logprobs: 1 } : {}),
      stream: true,
      onData: (chunk) => {
        console.log(JSON.stringify(chunk).slice(0, 600));
        onToken(null);
      },
    });
  });
}

async function close() {
  await engine?.exit();
  engine = loaded = null;
}

serve({ load, generate, close });
postMessage({ id: 0, ok: true, result: {} });
