"""Constrained decoding; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, GeneratorParams

from .running import load


async def guided(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    cases: Sequence[tuple[str, str, bool, Mapping[str, Any]]],
    device: str = "webgpu",
    **source: Any,
) -> list[dict[str, Any]]:
    """For each (kind, data, forced, search options): the ids of a generation, those after a rewind to its second token,
    how often ids were waited for, and how steps ran."""
    opened = await load(models, model, device=device, **source)
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
    return outputs
