"""A model whose rotary factors change past its original length: what is picked, and what was computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capstan import Generator, GeneratorParams
from capstan.generation.row_pool import RowPool, poolable

from . import running
from .running import alike, driven, rows

__all__ = ["alike", "driven", "pooled", "rows"]


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
