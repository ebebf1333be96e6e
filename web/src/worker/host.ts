// The module `_capstan_host` in Python: files, storage, tokenizers, grammars, and devices.
//
// The worker adds what belongs to its page (worker.ts); the wheel brings it to any Pyodide (wheel_host.ts).

import type { PyProxy } from "pyodide/ffi";
import { type Assets, placeAssets } from "../wire/assets";
import { copyBytes, withBytes } from "./crossing";
import { GpuEngine } from "./engine";
import { requestAdapter, requireAdapter, summarize } from "../wire/adapter";
import { type Backing, type DataFile, digest, freeBytes, writeShard } from "./storage/backing";
import { openBacking } from "./storage/open_backing";
import { fetchBytes, fetchOptional, fileExists, readNow } from "./storage/files";
import { crossOriginBytes, findCrossOrigin, keepCrossOrigin } from "./storage/cross_origin";
import { forgetFolders, keepFolder } from "./storage/kept_folders";
import { forgetRepositories, keepRepository, openRepository } from "./storage/hub";
import { takeDamaged } from "./storage/kept_files";
import { type LoadPlan, WeightLoad } from "./storage/weight_load";
import { Memory } from "./storage/memory";
import { readParts } from "./storage/parts";
import { adopt, listing } from "./storage/picked";
import { sha256 } from "../wire/sha256";
import { absolute, assumedSource, openSource } from "./storage/source";
import { setStallTimeout } from "./storage/whole";
import { cpuThreads, loadOrt, machineMemory, PROVIDERS, requireUnloaded } from "./ort";
import { OnnxSession } from "./onnx_sessions";
import { TokenWalks } from "./token_walks";
import { narrowRows, widenRows } from "./narrow_rows";
import { unpackRows } from "./unpacked_rows";
import { tracer } from "./trace";
import { makeTokenizer } from "./tokenizer_json";
import { EngineError } from "../wire/errors";
import { watchPolicy } from "../wire/load_failure";
import { CpuEngine } from "./cpu/cpu_engine";
import { WasmEngine } from "./wasm";

export function makeHost(assets: Assets): Record<string, unknown> {
  watchPolicy();
  return {
    now: () => performance.now(),
    /** Hears why Python is not used any more; our own worker is replaced (worker.ts). */
    spent: (_reason: string) => {},
    beginTrace: () => tracer.begin(),
    endTrace: () => tracer.end(),
    configure: (ortUrl: string | undefined) => {
      if (ortUrl !== undefined) requireUnloaded();
      placeAssets(assets, { "ort/": ortUrl });
    },
    readNow,
    adoptFiles,
    fetchBytes,
    fetchOptional,
    fileExists,
    storage: { ...storage, load: (plan: string, ...given: AfterPlan) => loadWeights(assets, plan, ...given) },
    makeTokenizer: (json: PyProxy) => makeTokenizer(textOf(json)),
    /** Only our own site has anything ready-made; see worker.ts. */
    readyMade: (_name: string, _size: number, _dtype: string) => null as unknown,
    /** Only our own folder has the library; see worker.ts. */
    phonemize: async (_text: string, _language: string): Promise<string> => {
      throw new EngineError(
        "OptionError",
        "this page has no library for phonemes; give a function `phonemize`, or phonemes",
      );
    },
    narrowRows: (rows: PyProxy, width: number, bits: number) => withBytes(rows, (all) => narrowRows(all, width, bits)),
    widenRows: (rows: PyProxy, width: number, bits: number) => withBytes(rows, (all) => widenRows(all, width, bits)),
    unpackRows: (rows: PyProxy, change: string) =>
      withBytes(rows, (all) => unpackRows(all, JSON.parse(change) as Parameters<typeof unpackRows>[1])),
    tokenWalks: (ends: PyProxy, data: PyProxy) => new TokenWalks(ends, data),
    openGpu: () => GpuEngine.open(assets),
    openWasm: (model: PyProxy, paths: string, wide: string, ...external: Memory[]) =>
      WasmEngine.open(assets, model, paths, wide, external),
    openProgram: (program: string, threads: number) => CpuEngine.open(assets, program, threads),
    openSession: (model: PyProxy, owner: string, locations: string, ...files: Memory[]) =>
      OnnxSession.onCpu(loadOrt(assets, "cpu"), model, owner, locations, files),
    cpu: () => {
      const shared = typeof SharedArrayBuffer !== "undefined";
      const memory = machineMemory();
      return JSON.stringify({ threads: cpuThreads(), shared, memory, provider: PROVIDERS.wasm });
    },
    adapter: async (required: boolean) => {
      const adapter = await (required ? requireAdapter() : requestAdapter());
      return adapter ? JSON.stringify(summarize(adapter)) : null;
    },
  };
}

type AfterPlan =
  ConstructorParameters<typeof WeightLoad> extends [LoadPlan, Assets | null, ...infer Rest] ? Rest : never;

async function loadWeights(assets: Assets, plan: string, ...given: AfterPlan): Promise<string> {
  return JSON.stringify(await new WeightLoad(JSON.parse(plan) as LoadPlan, assets, ...given).run());
}

const storage = {
  adopt,
  openRepository,
  keepRepository,
  forgetRepositories,
  keepFolder,
  forgetFolders,
  takeDamaged,
  listing,
  absolute,
  openBacking,
  readText,
  writeText: (backing: Backing, name: string, text: PyProxy) => backing.writeText(name, textOf(text)),
  readBytes: (backing: Backing, name: string) => backing.readBytes(name),
  writeBytes: (backing: Backing, name: string, bytes: PyProxy) => backing.writeBytes(name, copyBytes(bytes)),
  writeShard: (file: DataFile, start: number, bytes: PyProxy) =>
    withBytes(bytes, (view) => writeShard(file, start, view)),
  freeBytes,
  setStallTimeout,
  openSource,
  assumedSource,
  findCrossOrigin,
  keepCrossOrigin,
  crossOriginBytes,
  digest,
  readParts,
  memory: (size: number, start: number) => new Memory(size, start),
};

/** The text of UTF-8 in a Python buffer. Pyodide copies bytes at once, and a string by characters: 0.1 s a megabyte. */
function textOf(utf8: PyProxy): string {
  return withBytes(utf8, (bytes) => new TextDecoder().decode(bytes));
}

/** A file's text as UTF-8, null if there is none. */
async function readText(backing: Backing, name: string): Promise<Uint8Array | null> {
  const text = await backing.readText(name);
  return text === null ? null : new TextEncoder().encode(text);
}

/** A name for the files of a folder in Python's file system; `names` are their paths in it, as JSON. */
async function adoptFiles(names: string, ...contents: PyProxy[]): Promise<string> {
  const paths = JSON.parse(names) as string[];
  const files = await Promise.all(
    paths.map(async (path, i) => {
      const bytes = new Uint8Array(contents[i]!.toJs() as Uint8Array<ArrayBuffer>);
      const digest = await sha256(bytes);
      // Files of the same content get the same name, whenever they were written.
      return new File([bytes], path, { lastModified: new DataView(digest.buffer, digest.byteOffset).getUint32(0) });
    }),
  );
  return adopt(files);
}
