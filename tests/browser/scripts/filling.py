"""A model that goes on beside a page that takes all the memory there is; runs in the page."""

from __future__ import annotations

from typing import Any

from capstan import Generator, GeneratorParams, Model
from capstan.memory import ledger

PROMPT = [5, 6, 7, 8, 9]
BURST = 8
going: list[Any] = []
"""The model and the generator of `begin`."""


async def begin(models: dict[str, str]) -> list[int]:
    """The first ids of a generator that stays open."""
    model = await Model.load(models["nano-llama"], device="webgpu")
    generator = Generator(model, GeneratorParams(model))
    generator.append_tokens(PROMPT)
    going[:] = [model, generator]
    return await picked()


async def picked() -> list[int]:
    return [await going[1].generate_next_token_async() for _ in range(BURST)]


async def more(models: dict[str, str]) -> dict[str, Any]:
    """The next ids, and how often the model recovered."""
    return {"ids": await picked(), "recovered": going[0].recoveries}


async def end(models: dict[str, str]) -> int:
    """Bytes that stay in the ledger once all is closed."""
    model, generator = going
    await generator.aclose()
    await model.aclose()
    return ledger().bytes()
