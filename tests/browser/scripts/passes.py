"""Greedy picks by tapes of one recording, made with other passes each; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capstan import Model
from capstan.device.webgpu.tapes.step_recorder import StepRecorder
from capstan.fallback import fallbacks

from .meddling import recorded_again
from .running import picked

CAPACITY = 256


async def picked_with(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    choices: Sequence[Sequence[str] | None],
) -> dict[str, Any]:
    """For each choice of passes (None is the model's own) the ids and the passes' effects; and all steps down."""
    before = fallbacks()
    patched: Any = StepRecorder
    make_tape = patched._make_tape
    tapes: list[tuple[int, Any]] = []

    async def make_all(self: Any, *recorded: Any) -> tuple[int, Any]:
        for passes in choices:
            one = self if passes is None else replace(self, passes=passes)
            tapes.append(await make_tape(one, *recorded))
        return tapes[0]

    found = []
    async with await Model.load(models[model], device="webgpu") as opened:
        patched._make_tape = make_all
        try:
            with recorded_again():
                decoder: Any = await opened.decoder(CAPACITY)
        finally:
            patched._make_tape = make_tape
        first = decoder._step
        await decoder.close()
        for tape, verdict in tapes:
            passes = dict(verdict.passes)
            decoder._take_step(replace(first, tape=tape, passes=passes))
            ids = await picked(opened, prompt, count, max_length=CAPACITY)
            loaded: Any = opened._loaded
            assert loaded._decoders == [decoder], "another decoder picked"
            found.append({"ids": ids, "passes": passes})
        decoder._take_step(first)
        for tape, _ in tapes[1:]:
            first.engine.close_tape(tape)
    down = {name: times for name, times in fallbacks().items() if times > before.get(name, 0)}
    return {"tapes": found, "fallbacks": down}
