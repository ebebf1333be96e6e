"""The scripts of a soak (tests/soak): generators that work on a model at the same time; runs in the page."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import js

from capstan import ClosedError, DeviceLostError, Generator, Model
from capstan._js import host_calls
from capstan.memory import CATEGORIES, ledger

from . import probe
from .recovering import destroy
from .running import parameters

RELOADS = 8
"""Loads that may fail since the device was lost meanwhile."""
LEAVING_SECONDS = 10.0
"""Until what was dropped is gone."""


async def script(models: dict[str, str], *, plan: dict[str, Any], faults: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Load a model, run its generators, close it, with the faults of `Faults`. If the device is lost while no generator
    can recover, the model is loaded again, as the error says."""
    begun = host_calls.now()
    coming = Faults(faults)
    found: dict[str, Any] = {"reloads": 0, "recoveries": 0}
    while True:
        try:
            model = await Model.load(models[plan["model"]], device="webgpu", prefix_cache=plan["prefix_cache"])
            found["loaded"] = host_calls.now() - begun
            async with model:
                found["generators"] = [one for group in plan["groups"] for one in await together(model, group)]
                found["recoveries"] += model.recoveries
            break
        except DeviceLostError as error:
            if "load the model again" not in str(error) and "reload the page" not in str(error):
                raise AssertionError(f"the error does not say what to do: {error}") from error
            found["reloads"] += 1
            if found["reloads"] > RELOADS:
                raise
    found["took"] = host_calls.now() - begun
    coming.end()
    return found


async def together(model: Model, generators: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The result of each; all have ended if one fails."""
    ended = await asyncio.gather(*(one(model, plan) for plan in generators), return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return [result for result in ended if not isinstance(result, BaseException)]


async def one(model: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """The sequence of a generator, and its length after each rewind."""
    params = parameters(model, run_ahead=plan["run_ahead"], **plan["search"])
    params.options["recoveries"] = RELOADS
    generator = Generator(model, params)
    lengths: list[int] = []
    try:
        for verb, argument, *rest in plan["actions"]:
            if verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                lengths.append(max(1, int(argument * generator.token_count())))
                generator.rewind_to(lengths[-1])
            elif verb == "cancel":
                await take_cancelled(generator, argument, *rest)
            else:
                await picked(generator, argument)
        found = {"sequence": generator.get_sequence(), "lengths": lengths}
        if plan["end"] == "hurry" and not generator.is_done():
            await close_in_a_hurry(generator)
    finally:
        if plan["end"] != "drop":
            await generator.aclose()
    return found


async def take_cancelled(generator: Generator, count: int, before: int, turns: int) -> None:
    """`picked`, and the wait for the token after the first `before` is cancelled after as many turns of the loop."""
    taken = await picked(generator, before)
    if generator.is_done():
        return
    waiting = asyncio.ensure_future(generator.generate_next_token_async())
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
        taken += 1
    await picked(generator, count - taken)


async def close_in_a_hurry(generator: Generator) -> None:
    """Close it while somebody waits for its next token."""
    waiting = asyncio.ensure_future(generator.generate_next_token_async())
    await asyncio.sleep(0.002)
    await generator.aclose()
    with suppress(ClosedError, DeviceLostError):
        await waiting


async def picked(generator: Generator, count: int) -> int:
    """Generate at most `count` tokens, with an event for each as in requests. Returns their number."""
    taken = 0
    while taken < count and not generator.is_done():
        token = await generator.generate_next_token_async()
        taken += 1
        host_calls.emit({"kind": "text", "text": "", "token_id": token})
    return taken


class Faults:
    """Losses of the device ("destroy") or of the worker ("worker"), each at a reported token, or after as many
    milliseconds: (what, "tokens" or "ms", count)."""

    def __init__(self, faults: Sequence[Sequence[Any]]) -> None:
        self._emit, self._told = host_calls.emit, 0
        self._points = [(what, count) for what, unit, count in faults if unit == "tokens"]
        call_later = asyncio.get_running_loop().call_later
        self._timers = [call_later(count / 1000, fail, what) for what, unit, count in faults if unit == "ms"]
        if self._points:
            setattr(host_calls, "emit", self.emit)  # noqa: B010

    def emit(self, event: dict[str, Any]) -> None:
        """In place of the page's."""
        self._emit(event)
        self._told += event["kind"] == "text"
        for what, _ in [point for point in self._points if point[1] <= self._told]:
            fail(what)
        self._points = [point for point in self._points if point[1] > self._told]

    def end(self) -> None:
        """None of them comes any more."""
        for timer in self._timers:
            timer.cancel()
        setattr(host_calls, "emit", self._emit)  # noqa: B010


def fail(what: str) -> None:
    if what == "destroy":
        destroy()
    else:
        js.self.close()


coming: list[Faults] = []
"""Those of a conversation."""


async def begin_faults(models: dict[str, str], *, faults: Sequence[Sequence[Any]]) -> None:
    """Faults in the middle of what is asked for next."""
    coming.append(Faults(faults))


async def end_faults(models: dict[str, str]) -> None:
    """None of those comes any more."""
    while coming:
        coming.pop().end()


async def left(models: dict[str, str]) -> dict[str, Any]:
    """The leaks once nothing is open: bytes of the ledger, buffers and devices by the probe, Python's objects."""
    rounds = int(LEAVING_SECONDS / 0.05)
    for number in range(rounds):
        gc.collect()
        found: dict[str, Any] = {
            "ledger": {name: size for name in CATEGORIES if (size := ledger().bytes(category=name))},
            "buffers": sorted(probe.live_buffers()),
            "devices": probe.live_devices(),
            "objects": len(gc.get_objects()),
            "tasks": len(asyncio.all_tasks()),
        }
        if number > 1 and not (found["ledger"] or found["buffers"] or found["devices"] > 1):
            break
        await asyncio.sleep(0.05)
    faults = probe.faults()
    probe.forgive()
    probe.forget()
    probe.forget_bound()
    return {**found, "faults": faults}
