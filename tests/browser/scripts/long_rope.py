"""A model whose rotary factors change past its original length: what is picked, and what was computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, GeneratorParams, Model, Speculation
from capstan.fallback import fallbacks
from capstan.generation.row_pool import RowPool, poolable

from . import running
from .running import alike, counted

__all__ = ["alike", "driven", "pooled", "rows"]

Action = Sequence[Any]
"""("append", ids), ("generate", tokens), ("rewind", length)."""


async def driven(
    models: Mapping[str, str], *, model: str, actions: list[Action], load: dict[str, Any], **search: Any
) -> dict[str, Any]:
    """The ids that each "generate" picks, how often caches were computed again, how steps ran, and the steps down."""
    before = fallbacks()
    opened = await running.load(models, model, **load)
    drafted, grammar = search.pop("drafted", False), search.pop("grammar", "")
    params = GeneratorParams(opened)
    params.set_search_options(**search)
    if grammar:
        params.set_guidance("regex", grammar)
    if drafted:
        params.set_speculation(Speculation(always=True, ngram_size=2))
    found: list[list[int]] = []
    async with Generator(opened, params) as generator:
        for verb, argument in actions:
            if verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                generator.rewind_to(argument)
            else:
                found.append([await generator.generate_next_token_async() for _ in range(argument)])
        return {
            "context": opened.config.context_length,
            "ids": found,
            "rope_changes": generator.rope_changes,
            "capture": generator.capture,
            "note": generator.capture_note,
            "passes": generator.tape_passes,
            "counted": counted(before),
        }


async def rows(
    models: Mapping[str, str], *, model: str, prompts: list[list[int]], count: int, load: dict[str, Any], **search: Any
) -> dict[str, Any]:
    """The sequences of several rows after `count` steps."""
    opened: Model = await running.load(models, model, **load)
    params = GeneratorParams(opened)
    params.set_search_options(batch_size=len(prompts), **search)
    async with Generator(opened, params) as generator:
        generator.append_tokens(prompts)
        for _ in range(count):
            await generator.generate_next_token_async()
        sequences = [generator.get_sequence(row) for row in range(len(prompts))]
        return {"sequences": sequences, "rope_changes": generator.rope_changes, "passes": generator.tape_passes}


async def pooled(
    models: Mapping[str, str], *, model: str, before: list[int], prompt: list[int], count: int, load: dict[str, Any]
) -> list[int]:
    """The ids of a sequence of a pool, which takes the decoder that a generator over `before` gave back."""
    opened = await running.load(models, model, **load)
    params = GeneratorParams(opened)
    params.set_search_options(max_length=len(before) + 1)
    async with Generator(opened, params) as generator:
        generator.append_tokens(before)
        await generator.generate_next_token_async()
    params = GeneratorParams(opened)
    params.set_search_options(max_length=len(prompt) + count)
    assert poolable(opened, params)
    pool = RowPool(opened, params)
    sequence = pool.join()
    sequence.append_tokens(prompt)
    found = []
    for _ in range(count):
        await pool.bring(sequence._member)
        sequence.generate_next_token()
        found += sequence.get_next_tokens()
    await pool.leave(sequence._member)
    return found
