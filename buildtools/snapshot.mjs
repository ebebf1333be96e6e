// node snapshot.mjs REQUEST: boots Pyodide, imports what a page needs and writes the interpreter's memory to a file.
//
// REQUEST is JSON: {pyodide, wheels, folder, compile, modules, start, host, target}. Written to stdout, as JSON: the size
// of the memory without the zeros at its end, and the size of the heap which it fills.

import { readFileSync, writeFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";

// A thrown error of Pyodide's would print a line of its source, which is a megabyte long.
process.on("uncaughtException", (error) => {
  console.error(`error: ${error.message}`);
  process.exit(1);
});

// At its start Python looks for JavaScript Promise Integration, to decide whether `run_sync` exists at all. Older
// versions of Node have none, but the page may: let Python see it. Nothing here waits, and a page without it tells
// Python so at each call.
if (!("Suspending" in WebAssembly)) {
  WebAssembly.Suspending = function (action) {
    return action;
  };
  WebAssembly.promising = (action) => action;
}

const request = JSON.parse(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(`${request.pyodide}/pyodide.mjs`).href);

/** A fresh interpreter with the wheels in its file system; `contents` are their bytes by path. */
async function start(contents, options) {
  // As the executable is called in a page; else it would be this file, and its path part of the snapshot.
  const pyodide = await loadPyodide({ indexURL: request.pyodide, _sysExecutable: "./this.program", ...options });
  pyodide.FS.mkdirTree(request.folder);
  for (const [path, bytes] of contents) pyodide.FS.writeFile(path, bytes);
  return pyodide;
}

const read = (paths) =>
  new Map(paths.map((path) => [request.folder + basename(path), new Uint8Array(readFileSync(path))]));
const wheels = read(request.wheels);
const compiler = await start(wheels, {});
const source = readFileSync(request.compile, "utf8");
const inPython = (pyodide) => {
  const names = pyodide.toPy({});
  pyodide.runPython(source, { globals: names });
  return { addBytecode: names.get("add_bytecode"), nameSources: names.get("name_sources") };
};
const { addBytecode } = inPython(compiler);
const compiledAt = (path) => {
  addBytecode(path);
  return compiler.FS.readFile(path);
};
const compiled = new Map([...wheels.keys()].map((path) => [path, compiledAt(path)]));

const pyodide = await start(compiled, { _makeSnapshot: true });
const sys = pyodide.pyimport("sys");
// Pyodide puts the current folder first again when it starts from the snapshot.
sys.path.remove("");
for (const path of compiled.keys()) sys.path.append(path);
// The page puts its own host object where this one stands.
const host = {};
pyodide.registerJsModule(request.host, host);
const importlib = pyodide.pyimport("importlib");
for (const module of request.modules) importlib.import_module(module).destroy();
pyodide.pyimport(request.start).before_snapshot();
inPython(pyodide).nameSources(request.folder);
pyodide.pyimport("gc").collect();
const memory = pyodide.makeMemorySnapshot({
  serializer: (object) => {
    if (object === host) return request.host;
    throw new Error(`the snapshot would hold a JavaScript object (${Object.prototype.toString.call(object)})`);
  },
});
let end = memory.length;
while (memory[end - 1] === 0) end--;
end = Math.min(memory.length, Math.ceil(end / 4) * 4);
writeFileSync(request.target, memory.subarray(0, end));
console.log(JSON.stringify({ bytes: end, heap: pyodide._module.HEAP8.length }));
