"""Generating by hand: logits out, picks in; runs in the page."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.sampling import sample

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
