// Transformers.js in a worker of its own, for the race: its files as published, from this site alone.

/** The race's only message to this worker. */
export interface TransformersTask {
  /** The folder with transformers.min.js and onnxruntime-web's files for it. */
  library: string;
  /** The model's folder, in the layout of Transformers.js. */
  model: string;
  dtype: string;
  prompt: string;
  tokens: number;
}

/** This worker's messages. */
export type TransformersEvent =
  | { kind: "status"; text: string }
  /** The text so far. */
  | { kind: "text"; text: string }
  | { kind: "end"; ids: number[]; perSecond: number | null }
  | { kind: "error"; message: string };

/** The part of the library's interface that is used here. */
interface Library {
  env: {
    allowRemoteModels: boolean;
    allowLocalModels: boolean;
    localModelPath: string;
    useBrowserCache: boolean;
    backends: { onnx: { wasm: { wasmPaths: { mjs: string; wasm: string } } } };
  };
  AutoTokenizer: { from_pretrained(model: string): Promise<Tokenizer> };
  AutoModelForCausalLM: {
    from_pretrained(model: string, options: { device: string; dtype: string }): Promise<LanguageModel>;
  };
}

interface Tokenizer {
  (text: string): Record<string, unknown>;
  decode(ids: number[], options: { skip_special_tokens: boolean }): string;
}

interface LanguageModel {
  generate(options: Record<string, unknown>): Promise<unknown>;
}

/** As many tokens as the other runners take before anything is timed. */
const WARM = 4;

addEventListener("message", ({ data }: MessageEvent<TransformersTask>) => {
  run(data).then(
    (end) => tell(end),
    (error: unknown) => tell({ kind: "error", message: error instanceof Error ? error.message : String(error) }),
  );
});

function tell(event: TransformersEvent): void {
  postMessage(event);
}

async function run({ library, model, dtype, prompt, tokens }: TransformersTask): Promise<TransformersEvent> {
  tell({ kind: "status", text: "loading" });
  const { env, AutoTokenizer, AutoModelForCausalLM } = (await import(`${library}transformers.min.js`)) as Library;
  const { pathname } = new URL(model);
  const [, folder, name] = /^(.*\/)([^/]+)\/$/.exec(pathname)!;
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = folder!;
  env.useBrowserCache = false;
  const file = `${library}ort-wasm-simd-threaded.asyncify`;
  env.backends.onnx.wasm.wasmPaths = { mjs: `${file}.mjs`, wasm: `${file}.wasm` };
  const tokenizer = await AutoTokenizer.from_pretrained(name!);
  const loaded = await AutoModelForCausalLM.from_pretrained(name!, { device: "webgpu", dtype });
  // With the special tokens that begin a text, as Capstan encodes one.
  const given = tokenizer(prompt);
  await loaded.generate({ ...given, max_new_tokens: WARM, do_sample: false });
  tell({ kind: "status", text: "running" });
  const ids: number[] = [];
  let begin = 0;
  let end = 0;
  const streamer = {
    // The prompt comes first, as a whole.
    prompt: true,
    put([picked]: bigint[][]) {
      if (!this.prompt) {
        ids.push(...picked!.map(Number));
        end = performance.now();
        begin ||= end;
        tell({ kind: "text", text: tokenizer.decode(ids, { skip_special_tokens: true }) });
      }
      this.prompt = false;
    },
    end() {},
  };
  await loaded.generate({ ...given, max_new_tokens: tokens, do_sample: false, streamer });
  return { kind: "end", ids, perSecond: ids.length > 1 ? ((ids.length - 1) * 1000) / (end - begin) : null };
}
