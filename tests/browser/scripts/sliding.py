"""A model with attention over windows: what is picked, and what its caches hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, GeneratorParams, Model, OptionError, Speculation, measure
from capstan.fallback import fallbacks
from capstan.memory import Pools

from . import running
from .running import alike, counted

__all__ = ["alike", "driven", "given", "inside", "rows"]

Action = Sequence[Any]
"""("append", ids), ("generate", tokens), ("rewind", length), ("logits", None)."""


async def driven(
    models: Mapping[str, str], *, model: str, actions: list[Action], load: dict[str, Any], **search: Any
) -> dict[str, Any]:
    """The ids that each "generate" picks and the logits that are asked for, how steps ran, and the steps down."""
    before = fallbacks()
    opened = await running.load(models, model, **load)
    drafted = search.pop("drafted", False)
    params = GeneratorParams(opened)
    params.set_search_options(**search)
    if drafted:
        params.set_speculation(Speculation(always=True, ngram_size=2))
    ids: list[list[int]] = []
    logits: list[list[float]] = []
    async with Generator(opened, params) as generator:
        for verb, argument in actions:
            if verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                generator.rewind_to(argument)
            elif verb == "logits":
                logits.append(list(await generator.get_logits_async()))
            else:
                ids.append([await generator.generate_next_token_async() for _ in range(argument)])
        need = opened.query_memory_requirements(max_length=params.search.max_length or opened.config.context_length)
        return {
            "ids": ids,
            "logits": logits,
            "recomputed": generator.recomputed_tokens,
            "capture": generator.capture,
            "note": generator.capture_note,
            "passes": generator.tape_passes,
            "caches": {item.name: item.bytes for item in need.items if item.name.startswith("kv ")},
            "accepted": generator.speculation.accepted if drafted and generator.speculation else 0,
            "counted": counted(before),
        }


async def rows(
    models: Mapping[str, str], *, model: str, prompts: list[list[int]], count: int, load: dict[str, Any], **search: Any
) -> dict[str, Any]:
    """The sequences of several rows after `count` steps."""
    before = fallbacks()
    opened: Model = await running.load(models, model, **load)
    params = GeneratorParams(opened)
    params.set_search_options(**({"batch_size": len(prompts)} | search))
    async with Generator(opened, params) as generator:
        generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
        for _ in range(count):
            await generator.generate_next_token_async()
        sequences = [generator.get_sequence(row) for row in range(generator._loop.sequences)]
        return {"sequences": sequences, "passes": generator.tape_passes, "counted": counted(before)}


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
