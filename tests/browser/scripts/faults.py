"""Devices that die and sessions that are released while bursts are under way; runs in the page."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, cast

from pyodide.code import run_js

from capstan import CapstanError, Generator, GeneratorParams, Model
from capstan.memory import CATEGORIES, ledger

from . import probe
from .meddling import NO_ROOM, ROOM, on_call, recorded_again
from .running import close_all, gpu, load, picked

PROMPT = [5, 6, 7, 8, 9]
OUT_OF_MEMORY = """device => {
  const error = new GPUOutOfMemoryError("no room for a buffer");
  device.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
}"""

LATE = """() => {
  const { prototype } = GPUAdapter;
  const { requestDevice } = prototype;
  let busy = Promise.resolve();
  let answer;
  prototype.requestDevice = async function (...args) {
    const device = await requestDevice.apply(this, args);
    const { lost, queue } = device;
    const done = queue.onSubmittedWorkDone.bind(queue);
    Object.defineProperty(device, "lost", { value: lost.then((info) => busy.then(() => info)) });
    queue.onSubmittedWorkDone = () => done().then(() => busy);
    return device;
  };
  return {
    begin: () => { busy = new Promise((resolve) => { answer = resolve; }); },
    end: () => answer(),
    restore: () => { prototype.requestDevice = requestDevice; },
  };
}"""
"""Devices of a GPU process that can be too busy to report their loss, or anything else."""


async def seen(models: dict[str, str]) -> list[str]:
    """Faults of the devices since the last call."""
    found = probe.faults()
    probe.forgive()
    return found


async def without_room(models: dict[str, str], *, what: str) -> dict[str, Any]:
    """Load and generate without memory for a model's weights, or for a sequence of one; then with enough."""
    await close_all()
    url = models["nano-llama"]
    found: dict[str, Any] = {}
    async with await Model.load(models["nano-float"], device="webgpu") as other:
        device = gpu().js.watched.device
        # So that what all sequences share is there before.
        await picked(other, PROMPT, 2)
        model = None if what == "weights" else await Model.load(url, device="webgpu")
        before = categories()
        for turn in ("lacking", "cancelled"):
            pending: list[asyncio.Future[Any]] = []

            def meet(turn: str = turn, pending: list[asyncio.Future[Any]] = pending) -> None:
                if turn == "lacking":
                    run_js(NO_ROOM)(device)
                else:
                    asyncio.get_running_loop().call_soon(pending[0].cancel)

            with on_call("create_buffers", meet):
                wanted = Model.load(url, device="webgpu") if model is None else picked(model, PROMPT, 1)
                pending.append(asyncio.ensure_future(wanted))
                try:
                    await pending[0]
                    found[turn] = "nothing was raised"
                except (CapstanError, asyncio.CancelledError) as error:
                    found[turn] = f"{type(error).__name__}: {error}"
            run_js(ROOM)(device)
            # Pending requests continue; the sequence is kept for the next generator.
            if model is not None:
                await asyncio.gather(*cast(Any, model._loaded)._making)
                await model.trim()
            for _ in range(1200):
                if categories() == before:
                    break
                await asyncio.sleep(0.05)
            found[f"{turn} left"] = [before, categories()]
        again = model or await Model.load(url, device="webgpu")
        found["healthy"] = other.healthy() and again.healthy()
        found["ids"] = [await picked(again, PROMPT, 12)]
        await again.aclose()
    return found


def categories() -> dict[str, int]:
    """Live bytes, without those of onnxruntime-web."""
    found = {name: ledger().bytes(category=name) for name in CATEGORIES}
    del found["scratch"]
    return found


async def in_a_burst(models: dict[str, str], *, what: str, tokens: int = 9) -> dict[str, Any]:
    """Break something after some tokens with K = 4, while further bursts are under way; then load again."""
    model = await load(models, "nano-llama")
    # A free decoder may have a tape that was made from what is stored: then no session has buffers that the tape uses.
    await model.trim()
    generator = Generator(model, GeneratorParams(model, run_ahead=4, recoveries=0))
    generator.append_tokens(PROMPT)
    with recorded_again() if what == "session" else nullcontext():
        before = [await generator.generate_next_token_async() for _ in range(tokens)]
    flights = len(generator._loop.flight)
    error: dict[str, str] = {}
    if what == "device":
        gpu().destroy_device()
    elif what == "session":
        decoder: Any = generator._loop.decoder
        await gpu().release_session(decoder._step.session)
    elif what == "model":
        await model.aclose()
    elif what == "validation":
        run_js("device => { device.createBuffer({ size: 16, usage: 0x3ff }); }")(gpu().js.watched.device)
    elif what == "memory":
        # A device that really has no room left takes the machine with it; the browser's own event says the same.
        run_js(OUT_OF_MEMORY)(gpu().js.watched.device)
    after: list[int] = []
    try:
        for _ in range(40):
            after.append(await generator.generate_next_token_async())
    except CapstanError as found:
        error = {"type": type(found).__name__, "message": str(found)}
    again = ""
    try:
        await generator.generate_next_token_async()
    except CapstanError as found:
        again = type(found).__name__
    healthy = model.healthy()
    await generator.aclose()
    await model.aclose()
    fresh = await load(models, "nano-llama")
    return {
        "before": before,
        "flights": flights,
        "after": after,
        "error": error,
        "again": again,
        "healthy": healthy,
        "fresh": await picked(fresh, PROMPT, 12),
    }


async def lost_late(models: dict[str, str], *, waiting: float) -> dict[str, Any]:
    """A device that is destroyed with a burst under way, and of whose loss the browser tells nothing for as many
    seconds: whether the generator did, and what it says then."""
    await close_all()
    await lose_kept_device(models)
    gpu_process = run_js(LATE)()
    try:
        model = await load(models, "nano-llama")
    finally:
        gpu_process.restore()
    async with Generator(model, GeneratorParams(model, run_ahead=4, recoveries=0)) as generator:
        generator.append_tokens(PROMPT)
        for _ in range(9):
            await generator.generate_next_token_async()
        gpu_process.begin()
        gpu().destroy_device()
        told = asyncio.ensure_future(all_of(generator))
        early, _ = await asyncio.wait([told], timeout=waiting)
        gpu_process.end()
        await asyncio.wait([told])
    await close_all()
    return {"early": len(early), "error": type(told.exception()).__name__}


async def lose_kept_device(models: dict[str, str]) -> None:
    """So that the next model opens a device of its own."""
    async with await Model.load(models["nano-llama"], device="webgpu", capture="off"):
        gpu().destroy_device()


async def all_of(generator: Generator) -> None:
    async for _ in generator:
        pass
