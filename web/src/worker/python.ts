// Starts Python: from the snapshot of an interpreter that has imported Capstan already, or from nothing.

import type { PyodideInterface } from "pyodide";
import type { PyProxy } from "pyodide/ffi";
import { type Assets, assetUrl } from "../wire/assets";
import { EngineError } from "../wire/errors";
import { unreached, wasmFailure } from "../wire/load_failure";
import { fetchedBytes } from "./fetched_bytes";
import type { KnownFile } from "./ready_made";
import { type Build, ortFiles } from "./ort";
import { fill, unpackBeside } from "./unpack_snapshot";

/** The contents of python.json, which buildtools/site.py writes. */
interface PythonFiles {
  /** The folder for the wheels in Python's file system. */
  folder: string;
  wheels: string[];
  /** The sizes of files that a start needs, and of both builds of onnxruntime-web, by their names. */
  sizes: Record<string, number>;
  /** Wheels of modules that are installed when they are first imported, by the modules' names. */
  vendored: Record<string, string>;
  /** GGUF files whose graphs and tokenizers the site has ready-made; a package has none. */
  ready?: KnownFile[];
  /** Its unpacked size, and that of the WebAssembly memory which it fills. */
  snapshot: {
    file: string;
    /** The same without gzip, for servers that send it compressed with brotli; published sites have it. */
    unpacked?: string;
    bytes: number;
    heap: number;
  };
}

export type StartedFrom = "snapshot" | "plain";

export interface StartedPython {
  pyodide: PyodideInterface;
  from: StartedFrom;
  /** URLs of wheels by the modules that they bring. */
  vendored: Record<string, string>;
  /** Why it is not the snapshot although that was wanted. */
  refused: string | undefined;
}

/** The part of Emscripten's module that restoring needs. */
interface Module {
  HEAP8: Int8Array;
  HEAP32: Int32Array;
  growMemory(bytes: number): void;
  /** Addresses: CPython's state, and of the offset in it where the trampoline is kept. */
  __PyRuntime: number;
  __PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET: number;
}
type MakeModule = (settings: object) => Promise<Module>;

/** Pyodide's options that are not in its types; private, so that nothing here may depend on their working. */
interface SnapshotOptions {
  _loadSnapshot?: Uint8Array;
  _snapshotDeserializer?: (serialized: unknown) => unknown;
}

const HOST = "_capstan_host";

/**
 * Start Python with Capstan's wheels in its file system and on its path; `host` is what Python imports as
 * `_capstan_host`, `build` the build of onnxruntime-web that is prepared beside it. If the snapshot is missing or refused, Python starts without it and `refused` says why.
 */
export async function startPython(
  assets: Assets,
  host: object,
  snapshot: boolean,
  build: Promise<Build | null>,
): Promise<StartedPython> {
  const lacks = wasmFailure();
  if (lacks) throw new EngineError("StartError", lacks);
  const { index, brotli } = await pythonFiles(assets);
  const packed = snapshot && packedSnapshot(index.snapshot, brotli);
  void build.then((known) => fetchedBytes.expectRuntime(sizesOf(assets, index, packed, known)));
  const wheels = Promise.all(
    index.wheels.map(async (name): Promise<[string, Uint8Array]> => {
      const response = await fetched(assetUrl(assets, name));
      const wheel = new Uint8Array(await response.arrayBuffer());
      requireWholeZip(response.url, wheel.length, wheel.subarray(-ZIP_END));
      return [index.folder + name.slice(name.lastIndexOf("/") + 1), wheel];
    }),
  );
  const vendored = Object.fromEntries(
    Object.entries(index.vendored).map(([name, file]) => [name, assetUrl(assets, file)]),
  );
  // Awaited later: until then a failure must not count as unhandled.
  wheels.catch(() => undefined);
  let refused: string | undefined;
  if (snapshot) {
    try {
      const pyodide = await restore(assets, host, index.snapshot, brotli);
      writeWheels(pyodide, index.folder, await wheels);
      return { pyodide, from: "snapshot", vendored, refused };
    } catch (error) {
      refused = error instanceof Error ? error.message : String(error);
    }
  }
  const pyodide = await load(assets, await moduleMaker(assets), {});
  const written = await wheels;
  writeWheels(pyodide, index.folder, written);
  const { path } = pyodide.pyimport("sys") as PyProxy & { path: PyProxy & { append(folder: string): void } };
  for (const [wheel] of written) path.append(wheel);
  pyodide.registerJsModule(HOST, host);
  return { pyodide, from: "plain", vendored, refused };
}

let files: Promise<{ index: PythonFiles; brotli: boolean }> | null = null;

/** The contents of python.json, and whether its server compresses with brotli. It is read once. */
function pythonFiles(assets: Assets): Promise<{ index: PythonFiles; brotli: boolean }> {
  return (files ??= fetched(assetUrl(assets, "python.json")).then(async (told) => ({
    index: (await told.json()) as PythonFiles,
    brotli: isBrotli(told),
  })));
}

/** The GGUF files that the site knows. */
export async function knownFiles(assets: Assets): Promise<KnownFile[]> {
  return (await pythonFiles(assets)).index.ready ?? [];
}

/** The sizes of what this start loads, by addresses. */
function sizesOf(
  assets: Assets,
  { sizes, snapshot }: PythonFiles,
  packed: string | false,
  build: Build | null,
): Record<string, number> {
  const ort = build ? ortFiles(build) : [];
  const found: Record<string, number> = {};
  for (const [name, size] of Object.entries(sizes))
    if (name !== snapshot.file && (!name.startsWith("ort/") || ort.includes(name)))
      found[assetUrl(assets, name)] = size;
  if (packed) found[assetUrl(assets, packed)] = sizes[packed] ?? snapshot.bytes;
  return found;
}

/** Which of the snapshot's files comes with the fewest bytes: with `brotli` the server may send the unpacked one so. */
function packedSnapshot({ file, unpacked }: PythonFiles["snapshot"], brotli: boolean): string {
  return (brotli && unpacked) || file;
}

/** Pyodide's module of CPython. */
async function moduleMaker(assets: Assets): Promise<MakeModule> {
  const url = assetUrl(assets, "pyodide/pyodide.asm.mjs");
  const { default: make } = (await import(url)) as { default: MakeModule };
  fetchedBytes.whole(url);
  return make;
}

async function load(assets: Assets, make: MakeModule, options: SnapshotOptions): Promise<PyodideInterface> {
  const url = assetUrl(assets, "pyodide/pyodide.mjs");
  const { loadPyodide } = (await import(url)) as typeof import("pyodide");
  fetchedBytes.whole(url);
  const stdLibURL = assetUrl(assets, "pyodide/python_stdlib.zip");
  const watch = watchWasm(assetUrl(assets, `pyodide/${WASM}`));
  try {
    const loading = loadPyodide({
      indexURL: pyodideIndex(assets),
      stdLibURL,
      lockFileURL: assetUrl(assets, "pyodide/pyodide-lock.json"),
      ...({ createPyodideModule: make, ...options } as object),
    });
    const pyodide = await Promise.race([loading, watch.failed]);
    // Pyodide goes on without it, and reports only to the console.
    const { FS } = pyodide;
    const name = (FS.readdir("/lib") as string[]).find((entry) => /^python\d+\.zip$/.test(entry));
    const [size, end] = name ? endOf(FS, `/lib/${name}`) : [0, new Uint8Array()];
    requireWholeZip(stdLibURL, size, end);
    return pyodide;
  } finally {
    watch.stop();
  }
}

/** Bytes of the end of a zip archive without a comment. */
const ZIP_END = 22;

/** Throw unless a zip archive of this number of bytes is complete: the list of its files is at the end. */
function requireWholeZip(url: string, size: number, end: Uint8Array): void {
  if (String.fromCharCode(...end.subarray(0, 4)) !== "PK\x05\x06")
    throw new Error(`${url} is incomplete (${size} bytes)`);
}

/** The size of a zip archive in Python's file system, and its end. */
function endOf(FS: PyodideInterface["FS"], path: string): [number, Uint8Array] {
  const { size } = FS.stat(path) as { size: number };
  const end = new Uint8Array(Math.min(size, ZIP_END));
  const stream: unknown = FS.open(path, "r");
  FS.read(stream, end, 0, end.length, size - end.length);
  FS.close(stream);
  return [size, end];
}

/**
 * `failed` rejects if Pyodide's WebAssembly cannot be compiled: Pyodide reports only to the console, and never settles.
 */
function watchWasm(url: string): { failed: Promise<never>; stop: () => void } {
  const plain = WebAssembly.instantiateStreaming;
  const failed = new Promise<never>((_, reject) => {
    WebAssembly.instantiateStreaming = async (source, imports) => {
      try {
        return await plain.call(WebAssembly, source, imports);
      } catch (error) {
        const isPyodide = "Jsv_GetError_import" in (imports?.["env"] ?? {});
        const status = await Promise.resolve(source).then(
          (response) => response.status,
          () => 200,
        );
        const why = status < 400 ? String(error) : `HTTP ${status}`;
        if (isPyodide) reject(new Error(`${url} cannot be loaded (${why})`));
        throw error;
      }
    };
  });
  failed.catch(() => undefined);
  return { failed, stop: () => (WebAssembly.instantiateStreaming = plain) };
}

const WASM = "pyodide.asm.wasm";

/**
 * The folder in which Pyodide looks for its WebAssembly, the one file that no option of it names. If a bundler gave
 * that file another name, the name that Pyodide appends becomes a fragment, which is not sent.
 */
function pyodideIndex(assets: Assets): string {
  const url = assetUrl(assets, `pyodide/${WASM}`);
  return url.endsWith(`/${WASM}`) ? url.slice(0, -WASM.length) : `${url}#/`;
}

/** Python as it was when the snapshot was made. Its file system is not in there, but for Pyodide's own files. */
async function restore(
  assets: Assets,
  host: object,
  about: PythonFiles["snapshot"],
  brotli: boolean,
): Promise<PyodideInterface> {
  // Pyodide waits for the snapshot before it compiles its WebAssembly: it is given memory that is filled meanwhile.
  const memory = new Uint8Array(about.bytes);
  const filled = fillMemory(memory, assets, about, brotli);
  filled.catch(() => undefined);
  const make = await moduleMaker(assets);
  const filling: MakeModule = async (settings) => {
    const module = await make(settings);
    await filled;
    if (module.HEAP8.length < about.heap) module.growMemory(about.heap);
    adapt(memory, module);
    return module;
  };
  return load(assets, filling, {
    _loadSnapshot: memory,
    _snapshotDeserializer: () => host,
  });
}

/**
 * Put this module's trampoline into a snapshot. It is a slot of the function table, by which CPython calls functions of
 * other signatures; where an engine cannot compile it there is none, and calls go through JavaScript, where nothing can
 * wait. So it must be this engine's own, not that of the one in which the snapshot was made.
 */
function adapt(memory: Uint8Array, module: Module): void {
  const runtime = module.__PyRuntime;
  const offset = module.HEAP32[module.__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET >>> 2];
  if (!runtime || !offset) throw new Error("this version of Pyodide keeps its trampoline elsewhere");
  const view = new DataView(memory.buffer);
  // The second word of a snapshot is where the memory begins in it.
  const address = view.getUint32(4, true) + runtime + offset;
  view.setInt32(address, module.HEAP32[(runtime + offset) >>> 2]!, true);
}

/** Whether a server sent it so; servers of other origins do not let pages read that. */
function isBrotli(response: Response): boolean {
  return response.headers.get("Content-Encoding") === "br";
}

/**
 * The snapshot, exactly `about.bytes` long, as it comes over the network with the fewest bytes: with `brotli` the server may
 * send it so, else it is in a gzipped file.
 */
async function fillMemory(
  memory: Uint8Array,
  assets: Assets,
  about: PythonFiles["snapshot"],
  brotli: boolean,
): Promise<void> {
  if (brotli && about.unpacked) {
    const url = assetUrl(assets, about.unpacked);
    const response = await fetch(url).catch(() => null);
    if (response?.ok && response.body && isBrotli(response)) return fill(memory, response.body, url);
    void response?.body?.cancel();
  }
  const url = assetUrl(assets, about.file);
  memory.set(await unpackBeside(assets, (await fetched(url)).body!, url, about.bytes));
}

function writeWheels(pyodide: PyodideInterface, folder: string, wheels: [string, Uint8Array][]): void {
  pyodide.FS.mkdirTree(folder);
  for (const [path, bytes] of wheels) pyodide.FS.writeFile(path, bytes);
}

async function fetched(url: string): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url);
  } catch (error) {
    const { why, remedy } = await unreached(url, error);
    throw new EngineError("StartError", `${url} cannot be fetched (${why}); ${remedy}`);
  }
  if (!response.ok) throw new Error(`${url} cannot be read (HTTP ${response.status})`);
  return response;
}
