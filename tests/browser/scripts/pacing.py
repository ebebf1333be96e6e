"""Prompts with a bound on the time of their runs, on an adapter that is given long ones; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model
from capstan.device.webgpu import prefill_chunk

from .running import gpu, parameters, take


async def paced(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, times: int, longest: int, bound: str
) -> list[dict[str, Any]]:
    """The ids after a prompt, again and again, and the tokens of each run of it; `bound` is prefill_ms as text. The
    model is loaded again for the last time."""
    found: list[dict[str, Any]] = []
    usual = prefill_chunk.LONGEST[True]
    prefill_chunk.LONGEST[True] = longest
    try:
        for number in (times - 1, 1):
            opened = await Model.load(models[model], device="webgpu", prefill_ms=float(bound))
            for _ in range(number):
                found.append(await told(opened, prompt, count))
            await opened.aclose()
    finally:
        prefill_chunk.LONGEST[True] = usual
    return found


async def told(opened: Model, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """The ids after a prompt and the tokens of its runs."""
    async with Generator(opened, parameters(opened, max_length=len(prompt) + count)) as generator:
        await generator.prepare_async()
        engine: Any = gpu()
        run, runs = engine.run, []

        async def noted(binding: int, valid: int = 0, tokens: int = 1, *more: int) -> None:
            runs.append(tokens)
            await run(binding, valid, tokens, *more)

        engine.run = noted
        try:
            generator.append_tokens(prompt)
            ids = await take(generator, count)
        finally:
            del engine.run
        return {"ids": ids, "runs": runs}
