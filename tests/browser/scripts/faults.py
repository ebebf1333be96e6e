"""Devices that die and sessions that are released while bursts are under way; runs in the page."""

from __future__ import annotations

from typing import Any

from pyodide.code import run_js

from capstan import CapstanError, Generator, GeneratorParams

from . import probe
from .running import load, picked

PROMPT = [5, 6, 7, 8, 9]
OUT_OF_MEMORY = """device => {
  const error = new GPUOutOfMemoryError("no room for a buffer");
  device.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
}"""


async def seen(models: dict[str, str]) -> list[str]:
    """Faults of the devices since the last call."""
    found = probe.faults()
    probe.forgive()
    return found


async def in_a_burst(models: dict[str, str], *, what: str, tokens: int = 9) -> dict[str, Any]:
    """Break something after some tokens with K = 4, while further bursts are under way; then load again."""
    model = await load(models, "nano-llama")
    generator = Generator(model, GeneratorParams(model, run_ahead=4))
    generator.append_tokens(PROMPT)
    before = [await generator.generate_next_token_async() for _ in range(tokens)]
    flights = len(generator._flight)
    loaded: Any = model._loaded
    error: dict[str, str] = {}
    if what == "device":
        loaded._engine.destroy_device()
    elif what == "session":
        await loaded._engine.release_session(generator._decoder._step.session)  # type: ignore[union-attr]
    elif what == "model":
        await model.aclose()
    elif what == "validation":
        run_js("device => { device.createBuffer({ size: 16, usage: 0x3ff }); }")(loaded._engine._js.watched.device)
    elif what == "memory":
        # A device that really has no room left takes the machine with it; the browser's own event says the same.
        run_js(OUT_OF_MEMORY)(loaded._engine._js.watched.device)
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
