"""Generators over key/value caches of 8 and 4 bits; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import CapstanError, Generator, Model, Speculation, memory, plan
from capstan.fallback import fallbacks

from .rows import JOINT
from .running import close_all, parameters, picked, take


async def all_ways(
    models: Mapping[str, str], *, model: str, dtype: str, prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """The ids after a prompt by eager runs, from a tape, after a rewind, with the start taken over from the prefix
    cache, beside another row, and with drafts; the logits of the prompt; the bytes of the caches."""
    found: dict[str, Any] = {}
    await close_all()
    async with await Model.load(models[model], device="webgpu", capture="off", kv_cache_dtype=dtype) as opened:
        found["eager"] = await picked(opened, prompt, count, do_sample=False)
    before = fallbacks()
    given: dict[str, Any] = {"passes": JOINT, "prefix_cache": 1 << 22, "kv_cache_dtype": dtype}
    async with await Model.load(models[model], device="webgpu", **given) as opened:
        others = memory.ledger().bytes(category="persistent")
        async with Generator(opened, parameters(opened, do_sample=False)) as generator:
            generator.append_tokens(prompt)
            found["logits"] = list(await generator.get_logits_async())
            found["tape"] = await take(generator, count)
            found["passes"] = generator.tape_passes
            found["bytes"] = memory.ledger().bytes(category="persistent") - others
            found["told"] = opened.query_memory_requirements(max_length=generator.max_length).persistent.bytes
            generator.rewind_to(len(prompt) - 7)
            generator.append_tokens(prompt[-7:])
            found["rewound"] = await take(generator, count)
        async with Generator(opened, parameters(opened, do_sample=False)) as generator:
            generator.append_tokens(prompt)
            found["shared"] = await take(generator, count), generator.reused_tokens
        async with Generator(opened, parameters(opened, do_sample=False, batch_size=2)) as generator:
            generator.append_tokens([prompt, prompt[::-1]])
            await take(generator, count)
            found["row"] = generator.get_sequence(0)[len(prompt) : len(prompt) + count]
            found["rows"] = generator.tape_passes.get("rows", "")
        params = parameters(opened, do_sample=False)
        params.set_speculation(Speculation(ngram_size=2, max_draft_tokens=3, always=True))
        async with Generator(opened, params) as generator:
            generator.append_tokens(prompt)
            found["drafted"] = (await take(generator, count))[:count]
            found["drafts"] = generator.tape_passes.get("drafts", "")
    return {**found, "stepped down": [each for each in fallbacks() if each not in before]}


async def refusals(models: Mapping[str, str], *, asked: Sequence[Any]) -> list[str]:
    """The messages of loads with these (model, options)."""
    found = []
    for model, options in asked:
        try:
            async with await Model.load(models[model], **{"device": "webgpu", **options}):
                found.append("loaded")
        except CapstanError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


async def planned(models: Mapping[str, str], *, model: str) -> dict[str, int]:
    """The bytes of a sequence's caches, planned for each type."""
    found = {}
    for dtype in ("float", "int8", "int4"):
        fit = await plan(models[model], device="webgpu", kv_cache_dtype=dtype)
        found[dtype] = sum(item.bytes for item in fit.requirements.items if item.name.startswith("kv "))
    return found


async def on_both(
    models: Mapping[str, str], *, model: str, overlay: Mapping[str, Any], prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """Ids after a prompt on each device, the bytes of a sequence's caches, and what was stepped down."""
    found = {}
    for device in ("wasm", "webgpu"):
        before = fallbacks()
        async with await Model.load(models[model], device=device, overlay=overlay) as opened:
            ids = await picked(opened, prompt, count, do_sample=False)
            needed = opened.query_memory_requirements(max_length=256).persistent.bytes
        stepped = [each for each in fallbacks() if each not in before]
        found[device] = {"ids": ids, "bytes": needed, "stepped down": stepped}
    return found
