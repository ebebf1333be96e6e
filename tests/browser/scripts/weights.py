"""Loads models through the weight store, in small shards, and tells what came of it; runs in the page."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import js
from pyodide.code import run_js

from capstan import Model, WeightStore, plan
from capstan._js import page_storage
from capstan.device.webgpu.gpu_engine import WeightPiece
from capstan.device.webgpu.weight_lease import pieces
from capstan.fallback import counted
from capstan.graph import Part, change_of
from capstan.weights import manifest as manifests
from capstan.weights import weight_file
from capstan.weights.records import DATA

from . import probe
from .running import gpu

SHARD = 16384

FILL_UP = """writes => {
  const { prototype } = FileSystemSyncAccessHandle;
  globalThis.realWrite ??= prototype.write;
  let left = writes;
  prototype.write = function (...args) {
    if (left-- <= 0) throw new DOMException("no room", "QuotaExceededError");
    return globalThis.realWrite.apply(this, args);
  };
}"""
EMPTY_AGAIN = "() => { FileSystemSyncAccessHandle.prototype.write = globalThis.realWrite; }"
WITHOUT = """names => {
  globalThis.hidden = names.map((name) => {
    const [owner, key] = name === "opfs" ? [StorageManager.prototype, "getDirectory"] : [globalThis, "caches"];
    const own = Object.getOwnPropertyDescriptor(owner, key);
    Object.defineProperty(owner, key, { value: undefined, configurable: true });
    return () => (own ? Object.defineProperty(owner, key, own) : delete owner[key]);
  });
}"""
WITH_AGAIN = "() => { for (const show of globalThis.hidden) show(); }"
SPOIL = """async position => {
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-weights");
  for await (const [name, handle] of folder.entries()) {
    if (!name.endsWith(".data")) continue;
    const access = await handle.createSyncAccessHandle();
    const byte = new Uint8Array(1);
    access.read(byte, { at: position });
    byte[0] ^= 1;
    access.write(byte, { at: position });
    access.close();
  }
}"""
SHORTEN = """async size => {
  const root = await navigator.storage.getDirectory();
  if (size === 0) return root.removeEntry("capstan-weights", { recursive: true });
  for await (const [name, handle] of (await root.getDirectoryHandle("capstan-weights")).entries()) {
    if (!name.endsWith(".data")) continue;
    const access = await handle.createSyncAccessHandle();
    access.truncate(size);
    access.close();
  }
}"""
LOCK = """async create => {
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-weights");
  globalThis.locks = [];
  for await (const [name, handle] of folder.entries()) {
    if (name.endsWith(".data")) globalThis.locks.push(await handle.createSyncAccessHandle());
  }
  return globalThis.locks.length;
}"""
LOCKED = """async () => {
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-weights");
  let found = 0;
  for await (const [name, handle] of folder.entries()) {
    if (!name.endsWith(".data")) continue;
    try {
      (await handle.createSyncAccessHandle()).close();
    } catch (error) {
      if (error.name !== "NoModificationAllowedError") throw error;
      found++;
    }
  }
  return found;
}"""
UNLOCK = "() => { for (const lock of globalThis.locks) lock.close(); }"
PICK = """async (url, names, how) => {
  const files = [];
  for (const name of names) {
    const bytes = await (await fetch(url + name)).arrayBuffer();
    files.push(new File([bytes], name, { lastModified: 1000 }));
  }
  if (how === "files") return files;
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("picked", { create: true });
  for (const file of files) {
    const writable = await (await folder.getFileHandle(file.name, { create: true })).createWritable();
    await writable.write(file);
    await writable.close();
  }
  return folder;
}"""
ANSWER = """etag => {
  globalThis.realFetch ??= globalThis.fetch;
  globalThis.fetch = (url, init) => {
    if (init?.method === "HEAD" || !url.endsWith(".onnx.data")) return globalThis.realFetch(url, init);
    const body = new ReadableStream({ start: (stream) => stream.error(new TypeError("network error")) });
    return Promise.resolve(new Response(body, { headers: { ETag: etag } }));
  };
}"""
ANSWER_AGAIN = "() => { globalThis.fetch = globalThis.realFetch; }"
APPEND = """times => {
  globalThis.realText ??= Blob.prototype.text;
  let left = times;
  Blob.prototype.text = function () {
    if (left-- > 0) return Promise.reject(new DOMException("the file has changed", "NotReadableError"));
    return globalThis.realText.call(this);
  };
}"""
APPEND_NO_MORE = "() => { Blob.prototype.text = globalThis.realText; }"
READ = "(into, at) => { for (let i = 0; i < into.length; i++) into[i] = at + i; return into.length; }"

MIXED = "(into, at) => { for (let i = 0; i < into.length; i++) into[i] = (at + i) * 151 >> 3; return into.length; }"
GIVEN = "data => (into, at) => { into.set(Uint8Array.from(atob(data), (c) => c.charCodeAt(0))); return into.length; }"

kept: list[Model] = []


async def load(models: Mapping[str, str], *, model: str, keep: bool = False, **options: Any) -> dict[str, Any]:
    """Load on WebGPU; the weights' digests, the warnings, and what the store then holds."""
    return await load_from(models[model], keep, options)


async def load_from(folder: Any, keep: bool, options: dict[str, Any]) -> dict[str, Any]:
    manifests.SHARD_BYTES = options.pop("shard_bytes", SHARD)
    weight_file.REQUEST_BYTES = options.pop("request_bytes", 16 << 20)
    counted.clear()
    found: dict[str, Any] = {"error": None, "weights": None, "handles": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            opened = await Model.load(folder, **{"device": "webgpu", **options})
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
        else:
            loaded: Any = opened._loaded
            if opened.device_type == "webgpu":
                found["weights"] = await digest(loaded)
                found["handles"] = sorted(loaded._loaded.weights.values())
            if keep:
                kept.append(opened)
            else:
                await opened.aclose()
    found["warnings"] = [str(warning.message) for warning in caught]
    found["stored"] = await stored({})
    return found


async def crossings(models: Mapping[str, str], *, model: str, shard_bytes: int) -> list[int]:
    """The calls of the page's storage by which a model is loaded from its server, and then from the store."""
    calls = 0

    def counting(method: Any) -> Any:
        @functools.wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            return method(*given, **named)

        return call

    found, plain = [], []
    for kind in [value for name, value in vars(page_storage).items() if name.startswith("Js")]:
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                plain.append((kind, name, method))
                setattr(kind, name, counting(method))
    try:
        for _ in range(2):
            calls = 0
            error = (await load(models, model=model, shard_bytes=shard_bytes))["error"]
            assert error is None, error
            found.append(calls)
        return found
    finally:
        for kind, name, method in plain:
            setattr(kind, name, method)


async def uploaded(models: Mapping[str, str], *, model: str, offset: int, size: int) -> dict[str, Any]:
    """Upload a file of `size` bytes, of which 32 at `offset` are wanted: how many of its parts are, and those."""
    opened = await Model.load(models[model], device="webgpu")
    engine = gpu()
    buffer = engine.create_buffer("late", 32, "user", "test")
    sink = engine.upload_weights([WeightPiece(buffer, offset, 32)])
    try:
        wanted = 0
        for start in range(0, size, 1 << 20):
            wanted += sink.js.wants(start, 1 << 20)
            assert await sink.js.put(start, 1 << 20, run_js(READ))
        await sink.js.finish()
        return {"wanted": wanted, "weight": list(await engine.read(buffer, 0, 32))}
    finally:
        sink.js.close()
        engine.destroy_buffer(buffer)
        await opened.aclose()


async def turned(
    models: Mapping[str, str], *, model: str, parts: list[Any], shard: int, size: int, made: int
) -> dict[str, Any]:
    """Fill one buffer with parts of a file, and what staging memory is left; `parts` are fields of Parts."""
    opened = await Model.load(models[model], device="webgpu")
    engine = gpu()
    buffer = engine.create_buffer("turned", made, "user", "test")
    staged = [entry for entry in engine.ledger() if entry["category"] == "staging"]
    wanted = [Part(offset, length, change_of(fields)) for offset, length, fields in parts]
    sink = engine.upload_weights(list(pieces(buffer, wanted)))
    try:
        for start in range(0, size, shard):
            assert await sink.js.put(start, min(shard, size - start), run_js(MIXED))
        await sink.js.finish()
        sink.js.close()
        left = [entry for entry in engine.ledger() if entry["category"] == "staging"]
        return {"bytes": list(await engine.read(buffer, 0, made)), "left": left != staged}
    finally:
        engine.destroy_buffer(buffer)
        await opened.aclose()


async def unpacked(models: Mapping[str, str], *, model: str, data: str, parts: list[Any], made: int) -> str:
    """Fill one buffer with parts of a file, given in base64 as the buffer's bytes are returned."""
    opened = await Model.load(models[model], device="webgpu")
    engine = gpu()
    buffer = engine.create_buffer("unpacked", made, "user", "test")
    wanted = [Part(offset, length, change_of(fields)) for offset, length, fields in parts]
    sink = engine.upload_weights(list(pieces(buffer, wanted)))
    size = len(data) // 4 * 3 - data.count("=")
    try:
        assert await sink.js.put(0, size, run_js(GIVEN)(data))
        await sink.js.finish()
        return base64.b64encode(await engine.read(buffer, 0, made)).decode()
    finally:
        sink.js.close()
        engine.destroy_buffer(buffer)
        await opened.aclose()


async def digest(loaded: Any) -> str:
    """SHA-256 over the bytes of every weight on the GPU, in the file's order."""
    total = hashlib.sha256()
    for entry in loaded._loaded.graphs.weights:
        size = -(-entry.length // 4) * 4
        total.update((await gpu().read(loaded._loaded.weights[entry.name], 0, size))[: entry.length])
    return total.hexdigest()


async def stored(models: Mapping[str, str]) -> list[list[Any]]:
    """[size, bytes there, complete, damaged shards] of each file in the store."""
    listed = await WeightStore().list()
    return [[file.size, file.stored_bytes, file.complete, list(file.suspect)] for file in listed]


async def close_kept(models: Mapping[str, str], *, count: int = 1) -> list[str]:
    """Close the models that were kept longest; labels of the weight buffers that are left."""
    for _ in range(count):
        await kept.pop(0).aclose()
    return [label for label in probe.live_buffers() if label.startswith("weight ")]


async def pick(models: Mapping[str, str], *, model: str, names: list[str], how: str) -> dict[str, Any]:
    """Load a folder as the user would pick it: 'files' or 'folder'; where that is done, whether it fits."""
    folder = await run_js(PICK)(models[model], js.JSON.parse(str(names).replace("'", '"')), how)
    found = await load_from(folder, False, {})
    return found | {"fits": bool(await plan(folder, device="webgpu"))} if found["error"] is None else found


async def evict(models: Mapping[str, str]) -> int:
    return await WeightStore().evict()


async def verify(models: Mapping[str, str]) -> list[list[int]]:
    """The damaged shards of each file."""
    return [list(found.damaged) for found in await WeightStore().verify()]


async def kind(models: Mapping[str, str]) -> str:
    return await WeightStore().kind()


async def spoil(models: Mapping[str, str], *, position: int) -> None:
    """Change a byte of every stored data file."""
    await run_js(SPOIL)(position)


async def shorten(models: Mapping[str, str], *, size: int) -> None:
    """Cut every stored data file; with 0 evict everything, like the browser."""
    await run_js(SHORTEN)(size)


async def lock(models: Mapping[str, str]) -> int:
    """Hold every stored data file, like a writer."""
    return int(await run_js(LOCK)())


async def cancelled(models: Mapping[str, str], *, times: int) -> int:
    """Open the stored data file so often, each time cancelled one turn of the loop later: how often that came before
    it was open."""
    backing = await WeightStore().backing()
    assert backing is not None
    [data] = [name for name in await backing.names() if name.endswith(DATA)]
    [[size, *_]] = await stored(models)
    found = 0
    for turns in range(times):
        opening = asyncio.ensure_future(backing.open(data, size, SHARD, write=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        found += opening.cancelled()
        if not opening.cancelled():
            opening.result().close()
    (await backing.open(data, size, SHARD, write=False)).close()
    return found


async def locked(models: Mapping[str, str]) -> int:
    """How many stored data files somebody has open."""
    return int(await run_js(LOCKED)())


async def unlock(models: Mapping[str, str]) -> None:
    run_js(UNLOCK)()


async def full(models: Mapping[str, str], *, after: int) -> None:
    """The disk is full after so many writes of data."""
    run_js(FILL_UP)(after)


async def not_full(models: Mapping[str, str]) -> None:
    run_js(EMPTY_AGAIN)()


async def broken(models: Mapping[str, str], *, etag: str) -> None:
    """Data files are answered for with this ETag, and have broken off by then."""
    run_js(ANSWER)(etag)


async def not_broken(models: Mapping[str, str]) -> None:
    run_js(ANSWER_AGAIN)()


async def appended(models: Mapping[str, str], *, times: int) -> None:
    """The next reads of a file meet what another tab appends after the file was looked up."""
    run_js(APPEND)(times)


async def not_appended(models: Mapping[str, str]) -> None:
    run_js(APPEND_NO_MORE)()


async def without(models: Mapping[str, str], *, names: list[str]) -> None:
    """A browser without 'opfs' or 'caches'."""
    run_js(WITHOUT)(js.JSON.parse(str(names).replace("'", '"')))


async def with_again(models: Mapping[str, str]) -> None:
    run_js(WITH_AGAIN)()


async def insecure(models: Mapping[str, str]) -> None:
    """No crypto.subtle."""
    run_js("Object.defineProperty(crypto, 'subtle', { value: undefined, configurable: true })")


async def secure(models: Mapping[str, str]) -> None:
    run_js("delete crypto.subtle")
