"""Decode steps that cannot be captured, or tapes that are wrong; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from capstan import Model, TapeError
from capstan.tape import Op, Recording

from .meddling import recorded_again
from .running import load, picked

step_recorder: Any = import_module("capstan.device.webgpu.tapes.step_recorder")

PROMPT = [5, 6, 7, 8, 9]


async def damaged(
    models: Mapping[str, str], *, model: str, damages: Sequence[Any], capture: str = "tape", count: int = 8
) -> list[dict[str, Any]]:
    """The results of a recording with one operation changed: an index is dropped, a name is one of `DAMAGES`."""
    original = step_recorder.captured_half
    found: list[dict[str, Any]] = []
    opened = await Model.load(models[model], device="webgpu", capture=capture)
    loaded: Any = opened._loaded
    try:
        for damage in damages:

            def changed(recording: Recording, damage: Any = damage) -> tuple[Op, ...]:
                ops: tuple[Op, ...] = original(recording)
                if damage == "none":
                    return ops
                if damage == "swap":
                    return (*ops[:-2], ops[-1], ops[-2])
                if damage == "empty":
                    return ()
                if damage == "error":
                    raise TapeError("the recorded run has 3 dispatches that are not one sequence twice")
                at = damage if damage >= 0 else len(ops) + damage
                return (*ops[:at], *ops[at + 1 :])

            step_recorder.captured_half = changed
            # A decoder of another capacity is not a free one.
            limit = 256 if len(found) % 2 else 512
            with recorded_again():
                ids = await picked(opened, PROMPT, count, max_length=limit)
            decoder = loaded._free[-1]
            found.append({"ids": ids, "capture": decoder.capture, "note": decoder.capture_note})
            for free in list(loaded._free):
                loaded._free.remove(free)
                loaded._decoders.remove(free)
                await free.destroy()
    finally:
        step_recorder.captured_half = original
        await opened.aclose()
    return found


async def operations(models: Mapping[str, str], *, model: str) -> list[str]:
    """The kinds of the recorded step's operations."""
    kinds: list[str] = []
    original = step_recorder.captured_half

    def listed(recording: Recording) -> tuple[Op, ...]:
        ops: tuple[Op, ...] = original(recording)
        kinds[:] = [type(op).__name__ for op in ops]
        return ops

    step_recorder.captured_half = listed
    try:
        opened = await Model.load(models[model], device="webgpu")
        with recorded_again():
            await opened.decoder(256)
        await opened.aclose()
    finally:
        step_recorder.captured_half = original
    return kinds


async def mismatched(models: Mapping[str, str], *, model: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Reuse a decoder whose tape was recorded for another key, then for its own."""
    opened = await load(models, model)
    first = await picked(opened, PROMPT, 6)
    loaded: Any = opened._loaded
    decoder = loaded._free[-1]
    step = decoder._step
    decoder._step = replace(step, key=replace(step.key, **changes))
    error = ""
    try:
        await picked(opened, PROMPT, 6)
    except TapeError as found:
        error = f"{type(found).__name__}: {found}"
    decoder._step = step
    return {"first": first, "error": error, "again": await picked(opened, PROMPT, 6), "capture": decoder.capture}
