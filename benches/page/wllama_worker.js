// Contender: wllama (llama.cpp on WebGPU), its own file as published, over a GGUF file or the model folder's. It takes
// prompts as text alone, and tells no ids.
import { serve, timed } from "./worker.js";
import { Wllama } from "/bench/wllama/index.min.js";

const MOST_CONTEXT = 4096;
let engine = null;
let loaded = null;
let told = [];
let last = [];

/** llama.cpp's lines about its device, which reveal a run on the CPU; and its last words. */
const TELLING = /webgpu|offload|using device/i;
const listen = (...words) => {
  const line = words.join(" ").trim().slice(0, 300);
  if (TELLING.test(line) && told.length < 40) told.push(line);
  last = [...last.slice(-7), line];
};

/** The result of an action; its error includes the engine's last words, which give the reason. */
async function explained(action) {
  try {
    return await action();
  } catch (error) {
    throw new Error(`${error}; it said last: ${last.join(" | ")}`, { cause: error });
  }
}

async function load({ model, counting }) {
  if (counting) throw new Error("wllama makes its device in a worker of its own, where nothing is counted");
  await close();
  const start = performance.now();
  told = [];
  engine = new Wllama(
    { default: new URL("/bench/wllama/wllama.wasm", location.href).href },
    { logger: { debug: listen, log: listen, warn: listen, error: listen }, allowOffline: true },
  );
  const file = new URL(`/models/${model}${model.endsWith(".gguf") ? "" : "/model.gguf"}`, location.href).href;
  await explained(async () => engine.loadModelFromUrl(file, { n_ctx: await context(model), n_parallel: 1 }));
  loaded = model;
  return { load_ms: performance.now() - start, adapter: told };
}

/** The tokens of context to load with; llama.cpp takes more than a GGUF file's header allows, with a warning. */
async function context(model) {
  if (model.endsWith(".gguf")) return MOST_CONTEXT;
  const config = await (await fetch(`/models/${encodeURIComponent(model)}/genai_config.json`)).json();
  return Math.min(config.model.context_length, MOST_CONTEXT);
}

/** Pick `tokens` tokens after the prompt; ids are null, as many as there were tokens. */
async function generate({ model, text, tokens, sampling, counting }) {
  if (loaded !== model) await load({ model, counting });
  let usage = null;
  const found = await timed(async (onToken) => {
    const options = {
      prompt: text,
      max_tokens: tokens,
      ignore_eos: true,
      cache_prompt: false,
      ...(sampling ?? { temperature: 0, top_k: 1 }),
      stream: true,
      onData: (chunk) => {
        // The last one has no text, but the counts. A token that ends amid a character comes with the next one.
        usage = chunk.usage ?? usage;
        if (chunk.choices[0].finish_reason === null) onToken(null);
      },
    };
    await explained(() => engine.createCompletion(options));
  });
  const { completion_tokens, prompt_tokens } = usage;
  return { ...found, ids: Array(completion_tokens).fill(null), prompt_tokens };
}

async function close() {
  await engine?.exit();
  engine = loaded = null;
}

serve({ load, generate, close });
postMessage({ id: 0, ok: true, result: {} });
