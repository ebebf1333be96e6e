// Contender: onnxruntime-web as its users drive it. KV caches stay on the GPU, the logits of every step come to the CPU,
// where JavaScript picks the next token.
import { serve, timed } from "./worker.js";
import "./likeness.js";
import * as ort from "/capstan/ort/ort.webgpu.min.mjs";

ort.env.wasm.wasmPaths = "/capstan/ort/";
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

let session = null;
let loaded = null;
let shape = null;
let cacheType = null;

async function load({ model, counting }) {
  await close();
  if (counting) benchCounts.install();
  const start = performance.now();
  const folder = `/models/${encodeURIComponent(model)}/`;
  shape = (await (await fetch(`${folder}genai_config.json`)).json()).model.decoder;
  const kept = {};
  for (let i = 0; i < shape.num_hidden_layers; i++)
    kept[`present.${i}.key`] = kept[`present.${i}.value`] = "gpu-buffer";
  session = await ort.InferenceSession.create(folder + shape.filename, {
    executionProviders: [{ name: "webgpu", validationMode: "disabled" }],
    externalData: [{ path: `${shape.filename}.data`, data: `${folder}${shape.filename}.data` }],
    preferredOutputLocation: { ...kept, logits: "cpu" },
    logSeverityLevel: 3,
  });
  cacheType = session.inputMetadata.find(({ name }) => name === "past_key_values.0.key").type;
  loaded = model;
  return { load_ms: performance.now() - start };
}

const int64 = (values) => new ort.Tensor("int64", values, [1, values.length]);

function argmax(logits) {
  const width = logits.dims.at(-1);
  const last = logits.data.subarray(logits.data.length - width);
  let best = 0;
  let most = last[0];
  for (let i = 1; i < width; i++) {
    const value = last[i];
    if (value > most) {
      most = value;
      best = i;
    }
  }
  return best;
}

/** Run the prompt, then one step for each id that `next` gives for the logits [vocab] before it, until it gives none. */
async function decode(prompt, next) {
  const { num_hidden_layers: layers, num_key_value_heads: heads, head_size: width } = shape;
  const none = cacheType === "float16" ? new Uint16Array() : new Float32Array();
  let past = {};
  for (let i = 0; i < layers; i++) {
    for (const kind of ["key", "value"]) {
      past[`past_key_values.${i}.${kind}`] = new ort.Tensor(cacheType, none, [1, heads, 0, width]);
    }
  }
  let ids = BigInt64Array.from(prompt, BigInt);
  for (let length = prompt.length; ; length++) {
    const attention_mask = int64(new BigInt64Array(length).fill(1n));
    const results = await session.run({ ...past, input_ids: int64(ids), attention_mask });
    for (const tensor of Object.values(past)) tensor.dispose();
    past = {};
    for (const [name, tensor] of Object.entries(results)) {
      if (name !== "logits") past[name.replace("present", "past_key_values")] = tensor;
    }
    const id = next(results.logits);
    if (id === undefined) break;
    ids = BigInt64Array.of(BigInt(id));
  }
  for (const tensor of Object.values(past)) tensor.dispose();
}

/** Pick `tokens` ids after the prompt, greedily. */
async function generate({ model, prompt, tokens, sampling, counting }) {
  if (sampling) throw new Error("the eager loop picks greedily only");
  if (loaded !== model) await load({ model, counting });
  return timed(async (onToken) => {
    let left = tokens;
    await decode(prompt, (logits) => {
      const id = argmax(logits);
      onToken(id);
      return --left ? id : undefined;
    });
  }, counting);
}

/** How near the probabilities of steps over a chat's given reply come to float32's; as in in_page.py. */
async function agreement({ model, chat }) {
  if (loaded !== model) await load({ model });
  const { prompt, reply, compare, found } = await benchLikeness.chat(model, chat);
  let place = -1;
  await decode(prompt, (logits) => {
    // The prompt's own logits are no decode step's.
    if (place >= 0) compare(Float32Array.from(logits.data.subarray(logits.data.length - logits.dims.at(-1))));
    return reply[++place];
  });
  return found;
}

async function close() {
  await session?.release();
  session = loaded = null;
}

serve({ load, generate, agreement, close, memory: benchCounts.memory });
postMessage({ id: 0, ok: true, result: { version: ort.env.versions.web } });
