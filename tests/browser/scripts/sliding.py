"""A model with attention over windows: what is picked, and what its caches hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capstan import Generator, OptionError, measure
from capstan.memory import Pools

from . import running
from .running import alike, driven, rows

__all__ = ["alike", "driven", "given", "inside", "rows"]


async def inside(models: Mapping[str, str], *, model: str, prompt: list[int], load: dict[str, Any]) -> dict[str, Any]:
    """Reads and times the caches behind a prompt, and picks after that."""
    opened = await running.load(models, model, **load)
    async with Generator(opened) as generator:
        generator.append_tokens(prompt)
        ids = [await generator.generate_next_token_async() for _ in range(3)]
        decoder: Any = generator._loop.decoder
        carried, refused = [], ""
        for layer in range(2):
            try:
                carried.append((await decoder.carried(f"present.{layer}.key")).dims)
            except OptionError as error:
                refused = str(error)
        try:
            await measure.replay(generator, 2000, 4)
            asked = ""
        except OptionError as error:
            asked = str(error)
        await measure.replay(generator, 400, 4)
        ids += [await generator.generate_next_token_async() for _ in range(6)]
        return {"ids": ids, "carried": carried, "refused": refused, "asked": asked}


async def given(models: Mapping[str, str], *, model: str, prompt: list[int], load: dict[str, Any]) -> dict[str, Any]:
    """The ids of a generator over buffers of the caller's, and their names."""
    opened = await running.load(models, model, **load)
    need = opened.query_memory_requirements(max_length=opened.config.context_length)
    pools = {
        pool: {item.name: opened.device.allocate(item.bytes, label=item.name) for item in need.pool(pool)}
        for pool in ("persistent", "io")
    }
    try:
        async with Generator(opened, pools=Pools(**pools)) as generator:
            generator.append_tokens(prompt)
            ids = [await generator.generate_next_token_async() for _ in range(16)]
        return {"ids": ids, "names": sorted(name for each in pools.values() for name in each)}
    finally:
        for each in pools.values():
            for buffer in each.values():
                buffer.close()
