"""Generating by hand: logits out, picks in; runs in the page."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, GeneratorParams, LogitsError
from capstan.stages.sampling import sample

from .running import load, parameters, picked, take


async def host_loop(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, device: str, **search: Any
) -> dict[str, Any]:
    """The same options twice: picked where the device does it, and by the reference sampler over get_logits."""
    opened = await load(models, model, device=device)
    wanted = await picked(opened, prompt, count, **search)
    found: list[int] = []
    async with Generator(opened, parameters(opened, **search)) as generator:
        generator.append_tokens(prompt)
        options = generator._options
        for _ in range(count):
            logits = await generator.get_logits_async()
            tokens = generator.get_sequence()
            found.append(sample(logits, options, len(tokens), tokens=tokens, prompt=len(prompt)))
            generator.append_tokens([found[-1]])
    return {"device": wanted, "host": found}


async def replaced(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], device: str, token: int
) -> dict[str, Any]:
    """Generate past the point, ask for logits, replace them so that `token` wins, and go on."""
    opened = await load(models, model, device=device)
    async with Generator(opened, parameters(opened, run_ahead=3)) as generator:
        generator.append_tokens(prompt)
        first = await take(generator, 6)
        logits = array("f", await generator.get_logits_async())
        untouched = await take(generator, 2)
        generator.rewind_to(len(prompt) + 6)
        changed = array("f", await generator.get_logits_async())
        same = max(abs(a - b) for a, b in zip(logits, changed, strict=True))
        changed[token] = max(changed) + 1
        await generator.set_logits_async(changed)
        rest = await take(generator, 5)
        return {
            "first": first,
            "best": logits.index(max(logits)),
            "untouched": untouched,
            "same": same,
            "rest": rest,
            "sequence": generator.get_sequence(),
        }


async def barren(models: Mapping[str, str], *, model: str, prompt: Sequence[int], device: str) -> dict[str, Any]:
    """Generate from logits that are all NaN, greedily and by drawing, then from the model's own."""
    opened = await load(models, model, device=device)
    found: dict[str, Any] = {"errors": []}
    for draws in (False, True):
        async with Generator(opened, parameters(opened, run_ahead=3, do_sample=draws, random_seed=1)) as generator:
            generator.append_tokens(prompt)
            first = await take(generator, 2)
            await generator.set_logits_async(array("f", [math.nan] * len(await generator.get_logits_async())))
            try:
                await take(generator, 1)
            except LogitsError as error:
                found["errors"].append(str(error))
            generator.rewind_to(len(prompt))
            found[f"again {draws}"] = (await take(generator, 2)) == first
    return found


async def refused(models: Mapping[str, str], *, model: str) -> list[str]:
    """Logits of the wrong size and type."""
    opened = await load(models, model)
    messages = []
    async with Generator(opened, parameters(opened)) as generator:
        generator.append_tokens([5])
        wrong: list[Any] = [array("f", [0.0] * 511), array("d", [0.0] * 256), bytes(4 * 512)]
        for values in wrong:
            try:
                await generator.set_logits_async(values)
            except Exception as error:
                messages.append(f"{type(error).__name__}: {error}")
    return messages


async def processed(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    device: str,
    capture: str,
    appended: Sequence[int],
    search: Mapping[str, Any],
) -> dict[str, Any]:
    """Sequences where the two best tokens are never picked, by each kind of processor; bytes read back for a token."""
    opened = await load(models, model, device=device, capture=capture)

    def all_logits(_tokens: list[int], logits: memoryview[float]) -> None:
        for _ in range(2):
            logits[max(range(len(logits)), key=logits.__getitem__)] = float("-inf")

    def shortlist(_tokens: list[int], best: list[tuple[int, float]]) -> dict[int, float]:
        return {token: float("-inf") for token, _ in best[:2]}

    kinds: dict[str, dict[str, Any]] = {
        "logits": {"logits_processor": all_logits},
        "shortlist": {"shortlist_processor": shortlist, "shortlist": 16},
    }
    found: dict[str, Any] = {}
    for kind, given in kinds.items():
        params = GeneratorParams(opened, **given)
        params.set_search_options(**search)
        async with Generator(opened, params) as generator:
            generator.append_tokens(prompt)
            await take(generator, count)
            generator.append_tokens(appended)
            await take(generator, 1)
            before = generator.counters["readback_bytes"]
            await take(generator, count)
            read = generator.counters["readback_bytes"] - before
            found[kind] = {"sequence": generator.get_sequence(), "bytes": read / count, "capture": generator.capture}
    return found
