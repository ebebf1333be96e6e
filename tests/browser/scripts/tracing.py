"""Traces of generators, on adapters with and without timestamps; runs in the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pyodide.code import run_js

import capstan
from capstan import Generator, Model

from .running import gpu, load, parameters, take

host: Any = import_module("capstan._js.host_calls")

WITHOUT_TIMESTAMPS = """() => {
  const { prototype } = GPU;
  const { requestAdapter } = prototype;
  prototype.requestAdapter = async function (...args) {
    const adapter = await requestAdapter.apply(this, args);
    const features = new Set([...adapter.features].filter((name) => name !== "timestamp-query"));
    return Object.defineProperty(adapter, "features", { value: features });
  };
  return () => { prototype.requestAdapter = requestAdapter; };
}"""


async def traced(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, **options: Any
) -> dict[str, Any]:
    """The ids and counters of a run alone, of one that is traced and of one after it, the trace, and what it leaves."""
    opened = await load(models, model)
    found: dict[str, Any] = {}

    async def run() -> dict[str, Any]:
        async with Generator(opened, parameters(opened, **options)) as generator:
            generator.append_tokens(prompt)
            ids = await take(generator, count)
            return {"ids": ids, "counters": generator.counters, "capture": generator.capture}

    # Kernels are compiled and tapes made.
    await run()
    found["alone"] = await run()
    async with capstan.trace() as trace:
        found["traced"] = await run()
    found["after"] = await run()
    found["left"] = [entry for entry in gpu().ledger() if entry["owner"] == "trace"]
    return {**found, "trace": trace.content}


@contextmanager
def without_timestamps() -> Iterator[None]:
    """A device of an adapter that has no timestamp-query, in place of the page's."""
    restore = run_js(WITHOUT_TIMESTAMPS)()
    opened, host._gpu = host._gpu, None
    try:
        yield
    finally:
        restore()
        host._gpu = opened


async def untimed(models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """The trace of a load and a run on such a device."""
    with without_timestamps():
        async with capstan.trace() as trace:
            opened = await Model.load(models[model], device="webgpu")
            try:
                async with Generator(opened) as generator:
                    generator.append_tokens(prompt)
                    ids = await take(generator, count)
            finally:
                await opened.aclose()
    return {"ids": ids, "trace": trace.content}
