"""The cost of decode steps, by Capstan's counters and by the probe's; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator

from . import probe
from .running import close_all, load, parameters, picked, take


async def decode_steps(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    stop_after: int | None = None,
    passes: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Counters over the decode steps of a run up to max_length, or stopped after some tokens with bursts under way."""
    opened = await load(models, model, passes=passes)
    limit = len(prompt) + count
    async with Generator(opened, parameters(opened, max_length=limit, **options)) as generator:
        await generator.prepare_async()
        decoder: Any = generator._loop.decoder
        prefill, submit = decoder.prefill, decoder.submit
        before: dict[str, int] = {}
        bursts: list[int] = []

        async def watched_prefill(*run: Any) -> None:
            await prefill(*run)
            before.update(probe.counts())

        def watched_submit(picks: int, *how: Any) -> Any:
            bursts.append(picks)
            return submit(picks, *how)

        decoder.prefill, decoder.submit = watched_prefill, watched_submit
        try:
            generator.append_tokens(prompt)
            ids = await take(generator, stop_after or count)
            after = probe.counts()
            counters = generator.counters
        finally:
            del decoder.prefill, decoder.submit
        return {
            "ids": ids,
            "counters": counters,
            "seen": {name: after[name] - before[name] for name in probe.COUNTS},
            "bursts": bursts,
            "capture": generator.capture,
            "note": generator.capture_note,
        }


async def prefills(models: Mapping[str, str], *, model: str, capture: str, lengths: Sequence[int]) -> dict[str, Any]:
    """The device calls of prefills of these lengths once their kernels are compiled, and of a pick after one step."""
    opened = await load(models, model, capture=capture)
    decoder: Any = await opened.decoder(512)
    decoder.set_search(opened.search)
    found: dict[str, Any] = {"chunk": decoder.buffers.chunk, "prefills": {}}
    for length in lengths:
        ids = [(37 * i + 11) % 509 for i in range(length)]
        await decoder.prefill(ids, 0)
        before = probe.counts()
        await decoder.prefill(ids, 0)
        found["prefills"][length] = counted_since(before)
    await decoder.submit(1, True)
    before = probe.counts()
    await decoder.submit(1, False)
    found["step"] = counted_since(before)
    await decoder.close()
    return found


async def compiled(models: Mapping[str, str], *, model: str, early: bool, lengths: Sequence[int]) -> list[int]:
    """Shaders made by prefills of these lengths on a new device, the kernels having been compiled early or not."""
    await close_all()
    opened = await load(models, model)
    loaded: Any = opened._loaded
    loaded._warm_up = early
    async with Generator(opened, parameters(opened, max_length=256)) as generator:
        await generator.prepare_async()
    decoder: Any = await opened.decoder(256)
    found = []
    for length in lengths:
        before = probe.counts()["shader_modules"]
        await decoder.prefill([5] * length, 0)
        found.append(probe.counts()["shader_modules"] - before)
    await decoder.close()
    return found


def counted_since(before: Mapping[str, int]) -> dict[str, int]:
    after = probe.counts()
    return {name: after[name] - before[name] for name in probe.COUNTS}


async def picks(models: Mapping[str, str], *, model: str, capture: str, prompt: Sequence[int]) -> list[int]:
    """The 8 greedy tokens after a prompt."""
    return await picked(await load(models, model, capture=capture), prompt, 8, do_sample=False)
