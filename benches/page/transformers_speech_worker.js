// Contender: Transformers.js hears, its own files as published. Nothing is fetched from another host.
import { serve, timed } from "./worker.js";
import {
  AutoModelForSpeechSeq2Seq,
  AutoProcessor,
  AutoTokenizer,
  env,
} from "/bench/transformers_js/transformers.min.js";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/models/";
const here = new URL("/bench/transformers_js/ort-wasm-simd-threaded.asyncify", location.href).href;
env.backends.onnx.wasm.wasmPaths = { mjs: `${here}.mjs`, wasm: `${here}.wasm` };

let model = null;
let processor = null;
let tokenizer = null;

async function load({ name, device, dtype }) {
  const start = performance.now();
  processor = await AutoProcessor.from_pretrained(name);
  tokenizer = await AutoTokenizer.from_pretrained(name);
  const session_options = { logSeverityLevel: 3 };
  model = await AutoModelForSpeechSeq2Seq.from_pretrained(name, { device, dtype, session_options });
  return { load_ms: performance.now() - start, version: env.version };
}

/** The text of samples, and the parts of the time that it takes. */
async function hear({ samples, options }) {
  const start = performance.now();
  const features = await processor(samples);
  const features_ms = performance.now() - start;
  const { ids, first_ms, rest_ms } = await timed(async (onToken) => {
    let seenPrompt = false;
    const streamer = {
      put([found]) {
        if (seenPrompt) for (const id of found) onToken(Number(id));
        seenPrompt = true;
      },
      end() {},
    };
    await model.generate({ inputs: features.input_features, ...options, streamer });
  });
  const text = tokenizer.decode(ids, { skip_special_tokens: true });
  const whole_ms = performance.now() - start;
  return { whole_ms, features_ms, first_ms, token_ms: rest_ms / (ids.length - 1), tokens: ids.length, text };
}

serve({ load, hear });
postMessage({ id: 0, ok: true, result: { version: env.version } });
