"""Prompts run from prefill tapes and eagerly; runs in the page."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.device import prefill_tape
from capstan.tape import PASSES

from .running import close_all, load, parameters, picked, take

EAGER = tuple(name for name in PASSES if name not in ("prefill", "direct"))
TAPED = (*EAGER, "prefill")


async def again(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, times: int
) -> list[dict[str, Any]]:
    """The ids after a prompt, again and again with one sequence, and how many of its runs onnxruntime-web did."""
    opened = await load(models, model, passes=TAPED)
    found = []
    for _ in range(times):
        async with Generator(opened, parameters(opened, max_length=opened.config.context_length)) as generator:
            await generator.prepare_async()
            decoder: Any = generator._decoder
            engine, run, eager = decoder._engine, decoder._engine.run, [0]

            async def counted(*arguments: Any, run: Any = run, eager: list[int] = eager) -> None:
                eager[0] += 1
                await run(*arguments)

            engine.run = counted
            try:
                generator.append_tokens(prompt)
                ids = await take(generator, count)
            finally:
                del engine.run
            found.append({"ids": ids, "eager": eager[0], "report": generator.tape_passes["prefill"]})
            found[-1]["sessions"] = len(decoder._prefill_tapes.sessions)
    return found


async def refused(models: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """The last of three runs over a prompt where no difference is allowed that there could be."""
    await close_all()
    allowed, prefill_tape.IN_INT8 = prefill_tape.IN_INT8, 0.0
    try:
        return (await again(models, times=3, **arguments))[-1]
    finally:
        prefill_tape.IN_INT8 = allowed
        await close_all()


async def left_out(models: Mapping[str, str], *, model: str, prompt: Sequence[int]) -> dict[str, str]:
    """What is reported after the same prompt three times, without the pass."""
    opened = await load(models, model, passes=EAGER)
    for _ in range(3):
        await picked(opened, prompt, 2)
    async with Generator(opened, parameters(opened)) as generator:
        await generator.prepare_async()
        return generator.tape_passes


async def apart(models: Mapping[str, str], *, model: str, prompt: Sequence[int], past: Sequence[int]) -> dict[str, Any]:
    """How far logits and caches after `past` and `prompt` are apart, from tapes and eagerly."""
    opened = await load(models, model, passes=TAPED)
    decoder: Any = await opened.decoder(256)
    tapes, engine, buffers = decoder._prefill_tapes, decoder._engine, decoder._buffers
    for _ in range(2):
        await tapes.prepare(len(prompt))
    found = []
    for taped in (True, False):
        decoder._prefill_tapes = tapes if taped else None
        for cache in buffers.cache:
            engine.fill(cache, 0)
        if past:
            await decoder.prefill(past, 0)
        await decoder.prefill(prompt, len(past))
        spans = [buffers.logits_bytes, *[buffers.cache_bytes] * len(buffers.cache)]
        handles = [buffers.logits, *buffers.cache]
        found.append([array("f", await engine.read(h, 0, n)) for h, n in zip(handles, spans, strict=True)])
    decoder._prefill_tapes = tapes
    await decoder.close()
    differences = [max(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in zip(*found, strict=True)]
    return {
        "differences": differences,
        "largest": [max(map(abs, values)) for values in found[1]],
        "report": tapes.report,
        "lengths": [length for length, tape in tapes.tapes.items() if tape],
    }
