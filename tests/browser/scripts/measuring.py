"""Measures of decode steps, and what they leave behind; runs in the page."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from capstan import Generator, OptionError, measure
from capstan._js import host_calls
from capstan.device.row_interface import Burst
from capstan.device.webgpu.rehearsal import KEPT

from . import probe
from .running import gpu, load, parameters, take


async def amid(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], before: int, after: int, **options: Any
) -> dict[str, Any]:
    """A run that is measured in every way after `before` tokens, and the same run left alone."""
    opened = await load(models, model)
    found: dict[str, Any] = {}
    for name in ("alone", "measured"):
        async with Generator(opened, parameters(opened, **options)) as generator:
            await generator.prepare_async()
            generator.append_tokens(prompt)
            ids = await take(generator, before)
            if name == "measured":
                before_it = await generator.aside(state)
                ahead = list(generator._loop.rows[0].ready)
                found |= {"times": await times(generator), "ahead": len(ahead)}
                found["changed"] = [
                    name for name, data in (await generator.aside(state)).items() if data != before_it[name]
                ]
                found["left"] = [entry for entry in gpu().ledger() if entry["owner"] == "timing"]
            ids += await take(generator, after)
            found[name] = {"ids": ids, "counters": generator.counters, "sequence": generator.get_sequence()}
    return found


async def state(decoder: Any) -> dict[str, bytes]:
    """The contents of a sequence that steps change, without its caches."""
    spans = decoder.buffers.spans
    names = [name for name in KEPT if name in spans]
    return {name: (await decoder._device.copy_device_to_cpu(spans[name])).data for name in names}


async def times(generator: Generator) -> dict[str, Any]:
    """Every measure, and what the wall clock says: of each submit that is measured, the milliseconds until its times
    could be read; of the replay, between which stamps its first and its last ids became readable."""
    probe.forget()
    step = await measure.gpu_step_time(generator, steps=4)
    wall = {"steps": rounds()}
    operations = await measure.operations(generator, repeats=2)
    wall["operations"] = rounds()
    decoder: Any = generator._loop.decoder
    kinds = probe.played(gpu(), decoder._step.tape)
    replay = await measure.replay(generator, steps=6, picks=2)
    seen = probe.stamps()
    return {
        "step": step,
        "operations": [(found.index, found.label, found.microseconds) for found in operations],
        "kinds": kinds,
        "replay": replay,
        "readable": [(mapped, ranged) for (_, mapped), ranged in zip(seen["mapped"], seen["ranged"], strict=True)],
        "wall": wall,
    }


def rounds() -> list[float]:
    """Milliseconds from each submit that was read back to its result; forgets the stamps."""
    seen = probe.stamps()
    probe.forget()
    return [end - max(at for at in seen["submitted"] if at <= called) for called, end in seen["mapped"]]


async def refused(models: Mapping[str, str], *, model: str, prompt: Sequence[int]) -> dict[str, list[str]]:
    """Why measures are refused: without a tape, before a token, out of range, after the end."""
    found: dict[str, list[str]] = {}

    async def note(name: str, *attempts: Any) -> None:
        found[name] = []
        for attempt in attempts:
            try:
                await attempt
            except OptionError as error:
                found[name].append(str(error))

    opened = await load(models, model, capture="off")
    async with Generator(opened, parameters(opened)) as generator:
        generator.append_tokens(prompt)
        await take(generator, 1)
        await note(
            "off",
            measure.gpu_step_time(generator),
            measure.operations(generator),
            measure.replay(generator, steps=4, picks=1),
        )
    opened = await load(models, model)
    async with Generator(opened, parameters(opened, max_length=256, run_ahead=1)) as generator:
        await generator.prepare_async()
        generator.append_tokens([*prompt, *range(256 - 12 - len(prompt))])
        await note("no token", measure.gpu_step_time(generator))
        await take(generator, 1)
        await note(
            "range",
            measure.gpu_step_time(generator, steps=0),
            measure.gpu_step_time(generator, steps=100),
            measure.operations(generator, repeats=0),
            measure.replay(generator, steps=4, picks=65),
            measure.replay(generator, steps=4, picks=4),
            measure.replay(generator, steps=100, picks=4),
        )
        await take(generator, 11)
        await note("at the end", measure.gpu_step_time(generator, steps=1))
        generator.rewind_to(3)
        await note("rewound", measure.gpu_step_time(generator))
    return found


async def shares(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, pause: float
) -> dict[str, float]:
    """The host's milliseconds, JavaScript's and Python's, of a run whose reader takes `pause` ms for each token.

    By stamps taken here: those in which bursts were submitted, those in which they were waited for, and all from the
    first such to the last.
    """
    opened = await load(models, model)
    async with Generator(opened, parameters(opened, run_ahead=4)) as generator:
        await generator.prepare_async()
        decoder: Any = generator._loop.decoder
        submit = decoder.submit
        seen = {"submitting": 0.0, "waiting": 0.0}
        begun: list[float] = []
        ended: list[float] = []

        async def waited(burst: Awaitable[Burst]) -> Burst:
            start = host_calls.now()
            found = await burst
            ended.append(found.entered)
            seen["waiting"] += ended[-1] - start
            return found

        def watched(*asked: Any) -> Awaitable[Burst]:
            begun.append(host_calls.now())
            burst = submit(*asked)
            seen["submitting"] += host_calls.now() - begun[-1]
            return waited(burst)

        decoder.submit = watched
        generator.append_tokens(prompt)
        try:
            for _ in range(count):
                await take(generator, 1)
                until = time.perf_counter() + pause / 1000
                while time.perf_counter() < until:
                    pass
        finally:
            del decoder.submit
        timing = generator.timing
        return {"javascript": timing.host_ms, "python": timing.python_ms, **seen, "all": ended[-1] - begun[0]}
