// Gives onnxruntime-web's WebGPU provider an option that its JavaScript does not know. onnxruntime-web imports this module in
// place of its runtime, whose address is in this one's query.

type Append = (options: number, ...given: unknown[]) => unknown;

interface Runtime {
  _OrtAppendExecutionProvider: Append;
  _OrtAddSessionConfigEntry(options: number, key: number, value: number): number;
  _malloc(size: number): number;
  _free(at: number): void;
  lengthBytesUTF8(text: string): number;
  stringToUTF8(text: string, at: number, size: number): void;
}

const BITS = "ep.webgpuexecutionprovider.kvCacheQuantizationBits";

let cacheBits = 0;

/** The bits of an element of the key/value caches of the sessions that are made from now on; 0 for the graphs' own. */
export function setCacheBits(bits: number): void {
  cacheBits = bits;
}

const runtime = new URL(import.meta.url).searchParams.get("runtime") ?? "";
const { default: make } = (await import(runtime)) as { default: (config: object) => Promise<Runtime> };

export default async function (config: object): Promise<Runtime> {
  const made = await make(config);
  const append: Append = made._OrtAppendExecutionProvider;
  // The provider reads the options that the session has when it is appended, and onnxruntime-web sets `extra` later.
  made._OrtAppendExecutionProvider = (options, ...given) => {
    if (cacheBits) addEntry(made, options, BITS, String(cacheBits));
    return append(options, ...given);
  };
  return made;
}

function addEntry(made: Runtime, options: number, ...entry: [string, string]): void {
  const [key, value] = entry.map((text) => {
    const size = made.lengthBytesUTF8(text) + 1;
    const at = made._malloc(size);
    made.stringToUTF8(text, at, size);
    return at;
  }) as [number, number];
  const failed = made._OrtAddSessionConfigEntry(options, key, value);
  made._free(key);
  made._free(value);
  if (failed) throw new Error(`the session option ${entry.join(" ")} was refused`);
}
