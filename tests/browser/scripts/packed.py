"""Prompts of several rows, which are run together; runs in the page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.device.webgpu.row_buffers import RowBuffers
from capstan.device.webgpu.tapes.pack_tapes import PackBuffers, Placed
from capstan.fallback import fallbacks
from capstan.generation.row_pool import RowPool

from .rows import JOINT
from .running import close_all, load, parameters, take


async def batches(
    models: Mapping[str, str], *, model: str, runs: Sequence[Mapping[str, Any]], **how: Any
) -> list[dict[str, Any]]:
    """For each run a generator over `prompts`: its sequences after `count` steps, what was said of its prompts, and the
    steps down."""
    opened = await load(models, model, passes=JOINT, **how)
    found = []
    for run in runs:
        options = {"do_sample": False, "batch_size": len(run["prompts"]), **run.get("options", {})}
        before = fallbacks()
        async with Generator(opened, parameters(opened, **options)) as generator:
            generator.append_tokens(run["prompts"])
            for _ in range(run["count"]):
                if not generator.is_done():
                    await generator.generate_next_token_async()
            rows = len(run["prompts"]) * options.get("num_return_sequences", 1)
            found.append(
                {
                    "sequences": [generator.get_sequence(row) for row in range(rows)],
                    "said": generator.tape_passes.get("prompts", ""),
                    "stepped down": [each for each in fallbacks() if each not in before],
                }
            )
        await opened.settled_async()
    return found


async def pooled(
    models: Mapping[str, str],
    *,
    model: str,
    begun: Sequence[Sequence[int]],
    turns: Sequence[Sequence[Any]],
    count: int,
    passes: Sequence[str] = JOINT,
) -> dict[str, Any]:
    """Sequences of a pool. In each turn those of some numbers get tokens at once, and all of them get `count` more
    tokens: the sequences of each number at the ends of all turns, and what was said of the prompts."""
    opened = await load(models, model, passes=passes)
    before = fallbacks()
    pool = RowPool(opened, parameters(opened, do_sample=False))
    sequences = [pool.join() for _ in begun]
    found = []
    for turn in ([(number, ids) for number, ids in enumerate(begun)], *turns):
        for number, ids in turn:
            sequences[number].append_tokens(ids)
        for _ in range(count):
            for sequence in sequences:
                sequence.generate_next_token()
        found.append([sequence.get_sequence() for sequence in sequences])
        # The rows are in use, so that their tape is recorded at the next prompts.
        await opened.settled_async()
    assert pool.decoder is not None
    said = pool.decoder.tape_passes.get("prompts", "")
    for sequence in sequences:
        sequence.close()
    return {"found": found, "said": said, "stepped down": [each for each in fallbacks() if each not in before]}


async def shared(
    models: Mapping[str, str], *, model: str, runs: Sequence[Sequence[Sequence[int]]], count: int, limit: int
) -> list[dict[str, Any]]:
    """Batches, one after another, with a prefix cache: sequences, tokens taken over, and what was said of prompts."""
    found = []
    async with await Model.load(models[model], device="webgpu", passes=JOINT, prefix_cache=limit) as opened:
        for prompts in runs:
            async with Generator(opened, parameters(opened, do_sample=False, batch_size=len(prompts))) as generator:
                generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
                await take(generator, count)
                sequences = [generator.get_sequence(row) for row in range(len(prompts))]
                said = generator.tape_passes.get("prompts", "")
                found.append({"sequences": sequences, "reused": generator.reused_tokens, "said": said})
            await opened.settled_async()
    return found


async def mixed_up(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], count: int
) -> dict[str, Any]:
    """Two batches where the places of a run's tokens are told wrong: sequences, and what is said of the prompts."""
    await close_all()
    before, plain = fallbacks(), PackBuffers.write

    def wrong(self: PackBuffers, rows: RowBuffers, tokens: Sequence[Placed]) -> None:
        plain(self, rows, [*tokens[:2], tokens[2]._replace(row=tokens[-1].row), *tokens[3:]])

    PackBuffers.write = wrong  # type: ignore[method-assign]
    sequences = []
    try:
        async with await Model.load(models[model], device="webgpu", passes=JOINT) as opened:
            for _ in range(2):
                async with Generator(opened, parameters(opened, do_sample=False, batch_size=len(prompts))) as generator:
                    generator.append_tokens(prompts)
                    await take(generator, count)
                    sequences.append([generator.get_sequence(row) for row in range(len(prompts))])
                    said = generator.tape_passes["prompts"]
                await opened.settled_async()
    finally:
        PackBuffers.write = plain  # type: ignore[method-assign]
    told = [each for each in fallbacks() if each not in before]
    return {"sequences": sequences, "said": said, "stepped down": told}


async def cancelled(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], count: int
) -> dict[str, Any]:
    """A batch whose wait for the tape of its prompts is cancelled and which then goes on."""
    async with await Model.load(models[model], device="webgpu", passes=JOINT) as opened:
        params = parameters(opened, do_sample=False, batch_size=len(prompts))
        async with Generator(opened, params) as generator:
            generator.append_tokens(prompts)
            await take(generator, 1)
            # The rows are in use, so that the next ones record the tape before their prompts.
            await opened.settled_async()
        await opened.trim()
        plain, making = JsGpuEngine.record, asyncio.Event()

        async def record(self: JsGpuEngine, binding: int) -> Any:
            making.set()
            return await plain(self, binding)

        JsGpuEngine.record = record  # type: ignore[method-assign, assignment]
        try:
            async with Generator(opened, params) as generator:
                generator.append_tokens(prompts)
                waiting = asyncio.ensure_future(take(generator, 1))
                await asyncio.wait_for(making.wait(), 60)
                waiting.cancel()
                ended = (await asyncio.gather(waiting, return_exceptions=True))[0]
                await take(generator, count)
                sequences = [generator.get_sequence(row) for row in range(len(prompts))]
                said = generator.tape_passes["prompts"]
        finally:
            JsGpuEngine.record = plain  # type: ignore[method-assign]
    return {"sequences": sequences, "said": said, "ended": type(ended).__name__}
