"""Adapters with less than this one has, and kernels that one does not compile; runs in the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pyodide.code import run_js

from capstan import Generator, Model, OutOfMemoryError, plan
from capstan.fallback import fallbacks
from capstan.memory import MemoryType

from .prefilling import TAPED
from .running import load, parameters, picked, take

host: Any = import_module("capstan._js.host_calls")
page_host: Any = import_module("capstan._js.page_host")
step_recorder: Any = import_module("capstan.device.webgpu.tapes.step_recorder")

WITH_LIMITS = """limits => {
  const wanted = JSON.parse(limits);
  const { prototype } = GPU;
  const { requestAdapter } = prototype;
  prototype.requestAdapter = async function (...args) {
    const adapter = await requestAdapter.apply(this, args);
    const { limits } = adapter;
    const value = new Proxy(limits, { get: (found, name) => wanted[name] ?? found[name] });
    return Object.defineProperty(adapter, "limits", { value });
  };
  return () => { prototype.requestAdapter = requestAdapter; };
}"""


WITH_MEMORY = """gib => {
  Object.defineProperty(navigator, "deviceMemory", { value: gib, configurable: true });
  return () => { delete navigator.deviceMemory; };
}"""


@contextmanager
def adapter(limits: Mapping[str, int]) -> Iterator[None]:
    """A device of an adapter that says it has these limits, in place of the page's: it gets no more."""
    restore = run_js(WITH_LIMITS)(json.dumps(limits))
    opened, host._gpu = host._gpu, None
    try:
        yield
    finally:
        restore()
        host._gpu = opened


@contextmanager
def bound_as_if(largest: int | None, buffers: int | None) -> Iterator[None]:
    """Models are loaded as if the adapter bound no weights that are larger, and so many storage buffers in a kernel;
    None is for its own limit."""
    original = page_host.binding_limits

    async def limits() -> tuple[int, int]:
        own = await original()
        return buffers or own[0], largest or own[1]

    page_host.binding_limits = limits
    try:
        yield
    finally:
        page_host.binding_limits = original


async def limited(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    times: int,
    limits: Mapping[str, int],
    largest: int | None = None,
    buffers: int | None = None,
    load: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The ids after a prompt, repeatedly, on a device of a GPU adapter with these limits, and how steps were run."""
    with adapter(limits), bound_as_if(largest, buffers):
        opened = await Model.load(models[model], device="webgpu", **{"passes": TAPED, **(load or {})})
    loaded: Any = opened._loaded
    try:
        ids = [await picked(opened, prompt, count) for _ in range(times)]
        [decoder] = loaded._free
        engine = loaded._engine
        return {
            "ids": ids,
            "capture": decoder.capture,
            "note": decoder.capture_note,
            "passes": decoder.tape_passes,
            "healthy": opened.healthy(),
            "caches": [each.bytes for each in opened.query_memory_requirements().items if each.name.startswith("kv ")],
            "split": [[each.name, each.parts, each.why] for each in opened.query_memory_requirements().split],
            "alignment": [
                engine.adapter()["min_storage_buffer_offset_alignment"],
                engine.js.watched.device.limits.minStorageBufferOffsetAlignment,
            ],
        }
    finally:
        await opened.aclose()


async def answered(
    models: Mapping[str, str], *, requests: Sequence[Mapping[str, Any]], limits: Mapping[str, int]
) -> list[str]:
    """The refusals of a page's requests to generate, on a device of a GPU adapter with these limits; empty texts for
    those that are answered."""
    handler: Any = import_module("capstan.page.request_handler")
    found = []
    with adapter(limits):
        for request in requests:
            try:
                await handler.ANSWERS["generate"](handler.handler.session, request)
            except OutOfMemoryError as error:
                found.append(str(error))
            else:
                found.append("")
                await handler.handler.session.loaded[1].aclose()
                handler.handler.session.loaded = None
    return found


async def in_parts(models: Mapping[str, str], *, largest: int, script: str, function: str, **arguments: Any) -> Any:
    """The result of another script, whose models are loaded as if the adapter bound no larger weights, and the step
    down."""
    before = fallbacks()
    with bound_as_if(largest, None):
        found = await getattr(import_module(f"tests.browser.scripts.{script}"), function)(models, **arguments)
    told = [name for name, count in fallbacks().items() if count != before.get(name)]
    return {"found": found, "told": [each for each in told if each.startswith("weights in one binding each")]}


async def on_machine(models: Mapping[str, str], *, model: str, gib: float) -> dict[str, Any]:
    """Plan and load a model in a browser that reports this much memory: their warnings."""
    restore = run_js(WITH_MEMORY)(gib)
    before = fallbacks()
    try:
        fit = await plan(models[model], device="webgpu", max_length=16)
        opened = await Model.load(models[model], device="webgpu")
        await opened.aclose()
    finally:
        restore()
    told = [name for name, count in fallbacks().items() if count != before.get(name)]
    return {"fits": bool(fit), "tight": fit.tight, "bytes": fit.requirements.total.bytes, "told": told}


async def spoiled(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, part: str, lost: str, given: str | None
) -> dict[str, Any]:
    """The ids after a prompt where a `part` of each fused kernel that has it goes by the name `given`, not `lost`."""
    original = step_recorder.fused_step

    class Spoiled:
        """A fused step with such kernels."""

        def __init__(self, *wanted: Any) -> None:
            made = original(*wanted)
            self.played, self.tables, self._spec = made.played, made.tables, made.spec

        def spec(self, owner: str) -> dict[str, Any]:
            spec: dict[str, Any] = json.loads(json.dumps(self._spec(owner)))
            for kernel in spec["kernels"]:
                value = kernel[part].pop(lost, None)
                if given is not None and value is not None:
                    kernel[part][given] = value
            return spec

    # Without storage, which would know what came of the step before.
    opened = await Model.load(models[model], device="webgpu", disable_file_mapped_weights=True)
    step_recorder.fused_step = Spoiled
    try:
        async with Generator(opened, parameters(opened, max_length=100)) as generator:
            generator.append_tokens(prompt)
            ids = await take(generator, count)
            passes = generator.tape_passes
            return {"ids": ids, "capture": generator.capture, "passes": passes, "healthy": opened.healthy()}
    finally:
        step_recorder.fused_step = original
        await opened.aclose()


async def too_large(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Memory that no buffer of the adapter can have: the error of each kind."""
    opened = await load(models, model)
    loaded: Any = opened._loaded
    found: dict[str, Any] = {}
    for kind in MemoryType.DEFAULT, MemoryType.HOST_ACCESSIBLE:
        try:
            loaded.interface.allocate(1 << 36, kind, label="huge")
        except OutOfMemoryError as error:
            found[kind.name] = str(error)
    await picked(opened, [5, 6, 7], 2)
    return found
