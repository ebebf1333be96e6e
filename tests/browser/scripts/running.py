"""Models that stay loaded between scripts, and the plain ways to run them; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capstan import Generator, GeneratorParams, Model, Speculation
from capstan._js import host_calls
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.fallback import fallbacks

__all__ = ["alike", "close_all", "counted", "driven", "gpu", "load", "parameters", "picked", "rows", "take"]

loaded: dict[tuple[Any, ...], Model] = {}
"""The models used last, at most `KEPT`, the latest one at the end."""
KEPT = 6


async def load(
    models: Mapping[str, str],
    name: str,
    *,
    device: str = "webgpu",
    capture: str = "tape",
    passes: Sequence[str] | None = None,
    kv_cache_dtype: str | None = None,
    max_length: int | None = None,
    draft_model: str | None = None,
) -> Model:
    """A model, loaded now or by one of the last scripts of this page."""
    key = (name, device, capture, None if passes is None else tuple(passes), kv_cache_dtype, max_length, draft_model)
    model = loaded.pop(key, None)
    if model is None or not model.healthy():
        given: dict[str, Any] = {"capture": capture, "passes": passes, "kv_cache_dtype": kv_cache_dtype}
        given |= {"max_length": max_length, "draft_model": None if draft_model is None else models[draft_model]}
        model = await Model.load(models[name], device=device, **given)
    loaded[key] = model
    while len(loaded) > KEPT:
        await loaded.pop(next(iter(loaded))).aclose()
    return model


kept = load
"""The same where `load` is an argument."""


def gpu() -> JsGpuEngine:
    """The engine of the page's device, which a model has open."""
    engine = host_calls.gpu()
    assert engine is not None
    return engine


async def close_all() -> None:
    """Close every model that `load` keeps."""
    while loaded:
        await loaded.popitem()[1].aclose()


def parameters(
    model: Model,
    *,
    run_ahead: int | None = None,
    eos: Sequence[int] | None = None,
    guidance: Sequence[Any] = ("", ""),
    shortlist_processor: Any = None,
    **search: Any,
) -> GeneratorParams:
    """Search options over the model's own; `eos` replaces its end-of-sequence ids."""
    params = GeneratorParams(model, run_ahead=run_ahead, shortlist_processor=shortlist_processor)
    params.set_search_options(**search)
    params.set_guidance(*guidance)
    if eos is not None:
        params.search = replace(params.search, eos_token_ids=tuple(eos))
    return params


async def picked(model: Model, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """The tokens after a prompt: at most `count`, by a generator that may run ahead of the last one."""
    async with Generator(model, parameters(model, **options)) as generator:
        generator.append_tokens(prompt)
        return await take(generator, count)


async def take(generator: Generator, count: int) -> list[int]:
    """At most `count` tokens of a generator."""
    ids: list[int] = []
    while len(ids) < count and not generator.is_done():
        ids.append(await generator.generate_next_token_async())
    return ids


def counted(before: Mapping[str, int]) -> dict[str, int]:
    """The steps down since `fallbacks()` was `before`."""
    return {key: count - before.get(key, 0) for key, count in fallbacks().items() if count > before.get(key, 0)}


async def alike(
    models: Mapping[str, str],
    *,
    model: str,
    prompts: list[list[int]],
    count: int,
    load: dict[str, Any],
    close: bool = False,
) -> list[tuple[list[int], int]]:
    """The ids after each prompt, one generator open beside the other or, with `close`, behind it, and how many tokens
    each took over."""
    opened = await Model.load(models[model], prefix_cache=8 << 20, **load)
    try:
        open_, found = [], []
        for prompt in prompts:
            generator = Generator(opened)
            open_.append(generator)
            generator.append_tokens(prompt)
            found.append(([await generator.generate_next_token_async() for _ in range(count)], generator.reused_tokens))
            if close:
                await generator.aclose()
        for generator in open_:
            await generator.aclose()
        return found
    finally:
        await opened.aclose()


async def driven(
    models: Mapping[str, str],
    *,
    model: str,
    actions: Sequence[tuple[str, Any]],
    load: dict[str, Any],
    drafted: bool = False,
    grammar: str = "",
    **search: Any,
) -> dict[str, Any]:
    """The ids that each "generate" picks and the logits that are asked for, what was computed again, how steps ran, and
    the steps down. Actions are ("append", ids), ("generate", tokens), ("rewind", length) and ("logits", None)."""
    before = fallbacks()
    opened = await kept(models, model, **load)
    params = GeneratorParams(opened)
    params.set_search_options(**search)
    if grammar:
        params.set_guidance("regex", grammar)
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
            "context": opened.config.context_length,
            "ids": ids,
            "logits": logits,
            "recomputed": generator.recomputed_tokens,
            "rope_changes": generator.rope_changes,
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
    opened = await kept(models, model, **load)
    params = GeneratorParams(opened)
    params.set_search_options(**({"batch_size": len(prompts)} | search))
    async with Generator(opened, params) as generator:
        generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
        for _ in range(count):
            await generator.generate_next_token_async()
        return {
            "sequences": [generator.get_sequence(row) for row in range(generator._loop.sequences)],
            "rope_changes": generator.rope_changes,
            "passes": generator.tape_passes,
            "counted": counted(before),
        }
