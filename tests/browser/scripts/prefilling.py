"""Prompts run from prefill tapes and eagerly; runs in the page."""

from __future__ import annotations

import asyncio
import warnings
from array import array
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from pyodide.code import run_js

import capstan
from capstan import Generator
from capstan.fallback import fallbacks
from capstan.memory import ledger
from capstan.tape import PASSES

from .meddling import NO_ROOM, ROOM, on_call, recorded_again
from .running import close_all, gpu, load, parameters, picked, take

prefill: Any = import_module("capstan.device.webgpu.tapes.prefill_tapes")

EAGER = tuple(name for name in PASSES if name not in ("prefill", "direct"))
TAPED = (*EAGER, "prefill")


async def again(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, times: int
) -> list[dict[str, Any]]:
    """The ids after a prompt, repeatedly with one sequence, and the number of runs by onnxruntime-web."""
    opened = await load(models, model, passes=TAPED)
    found = []
    for _ in range(times):
        async with Generator(opened, parameters(opened, max_length=opened.config.context_length)) as generator:
            await generator.prepare_async()
            decoder: Any = generator._loop.decoder
            engine: Any = gpu()
            run, eager = engine.run, [0]

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
            found[-1]["sessions"] = len(decoder.runs.tapes.sessions)
    return found


async def refused(models: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """The last of three runs over a prompt, with a tolerance of 0."""
    await close_all()
    allowed, prefill.PROMPT_RUN = prefill.PROMPT_RUN, replace(prefill.PROMPT_RUN, float32=0.0, float16=0.0)
    try:
        return (await again(models, times=3, **arguments))[-1]
    finally:
        prefill.PROMPT_RUN = allowed
        await close_all()


async def left_out(models: Mapping[str, str], *, model: str, prompt: Sequence[int]) -> dict[str, str]:
    """The report after the same prompt three times, without the pass."""
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
    tapes, engine, buffers = decoder.runs.tapes, gpu(), decoder.buffers
    for _ in range(2):
        await tapes.make(tapes.due(len(prompt)))
    found = []
    for taped in (True, False):
        decoder.runs.tapes = tapes if taped else None
        for cache in buffers.cache:
            engine.fill(cache, 0)
        if past:
            await decoder.prefill(past, 0)
        await decoder.prefill(prompt, len(past))
        spans = [buffers.spans["logits"].length, *(span.length for span in buffers.cache_spans)]
        handles = [buffers.logits, *buffers.cache]
        found.append([array("f", await engine.read(h, 0, n)) for h, n in zip(handles, spans, strict=True)])
    decoder.runs.tapes = tapes
    await decoder.close()
    differences = [max(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in zip(*found, strict=True)]
    return {
        "differences": differences,
        "largest": [max(map(abs, values)) for values in found[1]],
        "report": tapes.report,
        "lengths": [length for length, tape in tapes.tapes.items() if tape],
    }


async def cancelled(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    at: Mapping[str, int],
    short: Sequence[int],
    count: int,
) -> list[list[list[int]]]:
    """The ids after a short prompt, and after `prompt` twice, when a wait was cancelled that made a tape for it.

    The decode step is as recorded: it takes its length from the mask.
    """
    found = []
    opened = await load(models, model, passes=["prefill"])
    with recorded_again():
        for name, number in at.items():
            await opened.trim()
            await picked(opened, prompt, 1, max_length=256)
            async with Generator(opened, parameters(opened, max_length=256)) as generator:
                generator.append_tokens(prompt)
                waiting = asyncio.ensure_future(generator.generate_next_token_async())
                with on_call(name, waiting.cancel, number), suppress(asyncio.CancelledError):
                    await waiting
                generator.rewind_to(0)
                generator.append_tokens(short)
                ids = [await take(generator, count)]
            found.append([*ids, *[await picked(opened, prompt, count, max_length=256) for _ in range(2)]])
            assert opened.healthy()
    return found


def held(model: str) -> dict[str, int]:
    """Bytes by category that a model and its sequences hold."""
    found: dict[str, int] = {}
    for entry in ledger().entries:
        if model in entry.owner:
            found[entry.category] = found.get(entry.category, 0) + entry.bytes
    return found


class Closing:
    """The end of a model, begun at some moment."""

    def __init__(self, model: capstan.Model) -> None:
        self.model = model
        self.task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self.task = asyncio.ensure_future(self.model.aclose())

    async def end(self) -> None:
        assert self.task is not None
        await self.task


async def closed(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], at: Sequence[Sequence[str]]
) -> list[Any]:
    """The error of a generator when its model closes while it makes a decode step or a prefill tape, and the leaks."""
    await close_all()
    device = await capstan.open_device("webgpu")
    found: list[Any] = []
    try:
        with recorded_again():
            for step, name in at:
                opened = await capstan.Model.load(models[model], device="webgpu", passes=TAPED)
                if step == "prefill":
                    await picked(opened, prompt, 1, max_length=256)
                generator = Generator(opened, parameters(opened, max_length=256))
                generator.append_tokens(prompt)
                recorded, token = generator.prepare_async, generator.generate_next_token_async
                work: Coroutine[Any, Any, object] = recorded(record=True) if step == "decode" else token()
                waiting = asyncio.ensure_future(work)
                closing = Closing(opened)
                with on_call(name, closing.begin):
                    await asyncio.wait([waiting])
                error = waiting.exception()
                await closing.end()
                await generator.aclose()
                found.append([step, name, type(error).__name__, held(model)])
    finally:
        device.close()
    return found


async def without_room(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, at: str
) -> dict[str, Any]:
    """Ids after a prompt that came before, whose tape finds no memory in one of the engine's methods."""
    opened = await load(models, model, passes=TAPED)
    await opened.trim()
    with recorded_again():
        first = await picked(opened, prompt, count, max_length=256)
    device = gpu().js.watched.device
    before = held(model)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with on_call(at, lambda: run_js(NO_ROOM)(device)):
            async with Generator(opened, parameters(opened, max_length=256)) as generator:
                generator.append_tokens(prompt)
                second = await take(generator, count)
                report = generator.tape_passes["prefill"]
        run_js(ROOM)(device)
    return {
        "ids": [first, second, await picked(opened, prompt, count, max_length=256)],
        "report": report,
        "healthy": opened.healthy(),
        "left": [before, held(model)],
        "warned": [str(warning.message) for warning in warned],
        "counted": [times for reason, times in fallbacks().items() if "no memory" in reason],
    }
