"""What decode steps cost, by Capstan's counters and by the probe's; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator

from . import probe
from .running import load, parameters, take


async def decode_steps(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    stop_after: int | None = None,
    direct: bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Counters over the decode steps of a run up to max_length, or stopped after some tokens with bursts under way."""
    opened = await load(models, model, direct=direct)
    limit = len(prompt) + count
    async with Generator(opened, parameters(opened, max_length=limit, **options)) as generator:
        await generator.prepare_async()
        decoder: Any = generator._decoder
        prefill, submit = decoder.prefill, decoder.submit
        before: dict[str, int] = {}
        bursts: list[int] = []

        async def watched_prefill(ids: Sequence[int], past: int) -> None:
            await prefill(ids, past)
            before.update(probe.counts())

        def watched_submit(picks: int, sample_first: bool) -> Any:
            bursts.append(picks)
            return submit(picks, sample_first)

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
