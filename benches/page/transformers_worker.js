// Contender: Transformers.js, its own file as published, told token ids. Nothing is fetched from another host.
import { serve, timed } from "./worker.js";
import { AutoModelForCausalLM, Tensor, env } from "/bench/transformers_js/transformers.min.js";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/transformers_js_models/";
const here = new URL("/bench/transformers_js/ort-wasm-simd-threaded.asyncify", location.href).href;
env.backends.onnx.wasm.wasmPaths = { mjs: `${here}.mjs`, wasm: `${here}.wasm` };

let model = null;
let loaded = null;

/** Load a model of the server; `session_options` are onnxruntime-web's. */
async function load({ model: name, counting }) {
  await close();
  if (counting) benchCounts.install();
  const start = performance.now();
  model = await AutoModelForCausalLM.from_pretrained(name, {
    device: "webgpu",
    dtype: "fp32", // The name of the file only, "model.onnx": the weights have the types they have in it.
    // The folder asks for graph capture in genai_config.json, which Transformers.js does not read.
    session_options: { logSeverityLevel: 3 },
  });
  loaded = name;
  return { load_ms: performance.now() - start };
}

/** Pick `tokens` ids after the prompt with the public generate(). */
async function generate({ model: name, prompt, tokens, sampling, counting }) {
  if (loaded !== name) await load({ model: name, counting });
  return timed(async (onToken) => {
    let seenPrompt = false;
    const streamer = {
      put([ids]) {
        if (seenPrompt) for (const id of ids) onToken(Number(id));
        seenPrompt = true;
      },
      end() {},
    };
    await model.generate({
      inputs: new Tensor("int64", BigInt64Array.from(prompt, BigInt), [1, prompt.length]),
      max_new_tokens: tokens,
      do_sample: sampling !== null,
      ...(sampling ?? {}),
      streamer,
    });
  }, counting);
}

async function close() {
  await model?.dispose();
  model = loaded = null;
}

serve({ load, generate, close, memory: benchCounts.memory });
postMessage({ id: 0, ok: true, result: { version: env.version } });
