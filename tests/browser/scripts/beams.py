"""Beam searches of joint rows, whose beams the GPU chooses or the host; runs in the page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from capstan import Generator, Model
from capstan.device.beam_interface import Continuation
from capstan.device.webgpu.joint_rows import JointRows
from capstan.fallback import fallbacks
from capstan.generation.beam_search import Beams

from .recovering import destroy
from .rows import APART, JOINT
from .running import load, parameters


async def searched(
    models: Mapping[str, str],
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    cases: Sequence[Mapping[str, Any]],
    by_host: bool = False,
    joint: bool = True,
    **about: Any,
) -> list[dict[str, Any]]:
    """For each case of search options what `search` tells; with `by_host` the device is not asked to choose. `about`
    are options of the load."""
    opened = await load(models, model, passes=JOINT if joint else APART, **about)
    with choosing_by_host() if by_host else noted() as choices:
        return [await search(opened, prompts, choices, **case) for case in cases]


async def search(
    opened: Model, prompts: Sequence[Sequence[int]], choices: list[list[list[int]]], **options: Any
) -> dict[str, Any]:
    """The hypotheses, each step's parents and tokens by prompt, the ids that were handed out, and the counters."""
    before, returned = fallbacks(), options.get("num_return_sequences", 1)
    choices.clear()
    asked = {"do_sample": False, "batch_size": len(prompts), **options}
    async with Generator(opened, parameters(opened, **asked)) as generator:
        generator.append_tokens(prompts)
        tokens = []
        while not generator.is_done():
            await generator.generate_next_token_async()
            tokens.append(generator.get_next_tokens())
        return {
            "sequences": [generator.get_sequence(row) for row in range(len(prompts) * returned)],
            "choices": list(choices),
            "tokens": tokens,
            "counters": dict(generator.counters),
            "said": generator.tape_passes.get("beams", ""),
            "stepped down": [each for each in fallbacks() if each not in before],
        }


@contextmanager
def noted() -> Iterator[list[list[list[int]]]]:
    """The parents and tokens of each call of Beams.take."""
    found: list[list[list[int]]] = []
    take: Callable[..., Sequence[Continuation]] = Beams.take

    def taken(self: Beams, *given: Any) -> Sequence[Continuation]:
        made = take(self, *given)
        found.append([[each.parent, each.token] for each in made])
        return made

    Beams.take = taken  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        Beams.take = take  # type: ignore[method-assign]


@contextmanager
def choosing_by_host() -> Iterator[list[list[list[int]]]]:
    """The same with joint rows that do not search by themselves."""
    prepare = JointRows.prepare_beams

    async def refused(self: JointRows, options: object) -> str:
        return "the test wants it so"

    JointRows.prepare_beams = refused  # type: ignore[method-assign]
    try:
        with noted() as found:
            yield found
    finally:
        JointRows.prepare_beams = prepare  # type: ignore[method-assign]


async def interrupted(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], after: int, **options: Any
) -> dict[str, Any]:
    """A search that is asked for its logits after some tokens, one that is rewound then, and again one on its rows."""
    opened = await load(models, model, passes=JOINT)
    given = parameters(opened, do_sample=False, **options)
    found: dict[str, Any] = {}

    async def tokens(generator: Generator, count: int) -> None:
        while count and not generator.is_done():
            await generator.generate_next_token_async()
            count -= 1

    async with Generator(opened, given) as generator:
        generator.append_tokens(prompt)
        await tokens(generator, after)
        await generator.get_logits_async()
        await tokens(generator, 1000)
        found["asked"] = generator.get_sequence(0)
        generator.rewind_to(0)
        generator.append_tokens([*prompt, *prompt])
        await tokens(generator, after)
        generator.rewind_to(0)
        generator.append_tokens(prompt)
        await tokens(generator, 1000)
        found["rewound"] = generator.get_sequence(0)
    async with Generator(opened, parameters(opened, do_sample=False, batch_size=options["num_beams"])) as generator:
        generator.append_tokens([list(prompt)] * options["num_beams"])
        await tokens(generator, after)
        found["batch"] = [generator.get_sequence(row) for row in range(options["num_beams"])]
        found["reused"] = generator.reused_tokens
    return found


async def cancelled(models: Mapping[str, str], *, model: str, prompt: Sequence[int], **options: Any) -> dict[str, Any]:
    """A search with a wait in every other token cancelled, after which caches are computed again."""
    opened = await load(models, model, passes=JOINT)
    count = 0
    async with Generator(opened, parameters(opened, do_sample=False, **options)) as generator:
        generator.append_tokens(prompt)
        while not generator.is_done():
            await generator.generate_next_token_async()
            if generator.is_done():
                break
            waiting = asyncio.ensure_future(generator.generate_next_token_async())
            await asyncio.sleep(0)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            count += waiting.cancelled()
        return {"sequence": generator.get_sequence(0), "cancelled": count}


async def lost(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], after: int, **options: Any
) -> dict[str, Any]:
    """A search whose device is lost after some tokens."""
    opened = await load(models, model, passes=JOINT)
    given = parameters(opened, do_sample=False, **options)
    given.options["recoveries"] = 3
    count = 0
    async with Generator(opened, given) as generator:
        generator.append_tokens(prompt)
        while not generator.is_done():
            await generator.generate_next_token_async()
            count += 1
            if count == after:
                destroy()
                await asyncio.sleep(0.05)
        sequences = [generator.get_sequence(row) for row in range(given.search.num_return_sequences)]
        return {"sequences": sequences, "recoveries": opened.recoveries}
