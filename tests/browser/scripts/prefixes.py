"""Generators that take over rows of others; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from capstan import Generator, Model, memory

from .rows import JOINT
from .running import parameters, take


async def shared(
    models: Mapping[str, str],
    *,
    model: str,
    device: str,
    start: Sequence[int],
    tails: Sequence[Sequence[int]],
    lengths: Sequence[int],
    count: int,
    limit: int = 1 << 22,
) -> dict[str, Any]:
    """A generator for each tail behind a start, each of another max_length: the first is closed before the second
    begins, later ones stay open; then a batch of two of the prompts. Ids, tokens taken over, and what is left."""
    async with await Model.load(models[model], device=device, passes=JOINT, prefix_cache=limit) as opened:
        found: list[Any] = []
        kept: list[int] = []
        generators = []
        for number, (tail, length) in enumerate(zip(tails, lengths, strict=True)):
            generator = Generator(opened, parameters(opened, do_sample=False, max_length=length))
            generator.append_tokens([*start, *tail])
            found.append((await take(generator, count), generator.reused_tokens))
            if number == 0:
                await generator.aclose()
                kept = [entry.bytes for entry in memory.ledger().entries if entry.owner.endswith("kept")]
            else:
                generators.append(generator)
        async with Generator(
            opened, parameters(opened, do_sample=False, batch_size=2, max_length=lengths[0])
        ) as generator:
            generator.append_tokens([[*start, 1, 9], [*start, 3, 4]])
            await take(generator, count)
            rows = [generator.get_sequence(row)[len(start) + 2 :] for row in range(2)]
            batch = (rows, generator.reused_tokens, generator.tape_passes.get("rows", ""))
        for generator in generators:
            await generator.aclose()
        stats = asdict(opened.prefixes.stats())
        await opened.trim()
        left = [entry.bytes for entry in memory.ledger().entries if entry.owner.endswith("kept")]
        return {"found": found, "batch": batch, "kept": kept, "stats": stats, "left": left}
