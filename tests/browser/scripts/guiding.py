"""Constrained decoding; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyodide.code import run_js

from capstan import Generator, GeneratorParams
from capstan.errors import CapstanError

from .running import load

LOADED = "() => performance.getEntriesByType('resource').filter((entry) => entry.name.includes('xgrammar')).length"


async def guided(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    cases: Sequence[tuple[str, str, bool, Mapping[str, Any]]],
    device: str = "webgpu",
    **source: Any,
) -> dict[str, Any]:
    """For each (kind, data, forced, search options): the ids of a generation, those after a rewind to its second token,
    how often ids were waited for, and how steps ran; and how often the grammar library was fetched before and after."""
    opened = await load(models, model, device=device, **source)
    before = run_js(LOADED)()
    outputs = []
    for kind, data, forced, search in cases:
        params = GeneratorParams(opened, run_ahead=None if forced else 8)
        params.set_search_options(**search)
        params.set_guidance(kind, data, forced)
        async with Generator(opened, params) as generator:
            await generator.prepare_async(record=True)
            generator.append_tokens(prompt)
            ids = [token async for token in generator]
            steps, waits = generator.counters["steps"], generator.counters["python_crossings"]
            if len(ids) > 3:
                generator.rewind_to(len(prompt) + 2)
            again = [token async for token in generator]
            outputs.append({"ids": ids, "again": again, "steps": steps, "waits": waits, "capture": generator.capture})
    return {"outputs": outputs, "before": before, "after": run_js(LOADED)()}


async def refused(models: Mapping[str, str], *, model: str, text: str) -> dict[str, Any]:
    """The error for a grammar that only xgrammar finds wrong, and whether matchers made before and after it allow any
    token."""
    grammars = await (await load(models, model, device="wasm")).grammars()
    earlier = await grammars.compile('root ::= "a"')
    said = ""
    try:
        await grammars.compile(text)
    except CapstanError as error:
        said = f"{type(error).__name__}: {error}"
    later = await grammars.compile('root ::= "a"')
    return {"said": said, "allowed": [any(await earlier.mask()), any(await later.mask())]}
