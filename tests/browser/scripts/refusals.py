"""Leaks on the device after a refusal, and refusals that need another entry into Python; runs in the page."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pyodide.code import run_js

import capstan
from capstan import Model
from capstan import genai as og

from . import probe
from .running import close_all, load


async def left(models: Mapping[str, str]) -> dict[str, Any]:
    """Labels of the buffers that are still there, and how many devices."""
    return {"buffers": probe.live_buffers(), "devices": probe.live_devices()}


async def without_webgpu(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Load in a browser without WebGPU."""
    hide = "Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true })"
    run_js(hide)
    try:
        found: dict[str, Any] = {"webgpu": await refusal(Model.load(models[model], device="webgpu"))}
        async with await Model.load(models[model], device="auto") as opened:
            found["auto"] = opened.device_type
        config = og.Config(models[model])
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found["folder"] = og.Model(config).device_type
        found["warned"] = [[type(warning.message).__name__, str(warning.message)] for warning in warned]
        config.clear_providers()
        config.append_provider("webgpu")
        try:
            og.Model(config)
        except capstan.DeviceUnavailableError as error:
            found["named"] = str(error)
    finally:
        run_js("delete navigator.gpu")
    return found


async def blocking(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Blocking calls where Python may wait, and where a plain JavaScript call is below it."""
    await close_all()
    found: dict[str, Any] = {}
    opened = Model(models[model], device="wasm")
    with capstan.Generator(opened) as generator:
        generator.append_tokens([5, 6, 7, 8, 9])
        ids = []
        for _ in range(6):
            generator.generate_next_token()
            ids += generator.get_next_tokens()
        found["ids"] = ids

        def inside() -> None:
            calls = {
                "model": lambda: Model(models[model]),
                "token": generator.generate_next_token,
                "logits": generator.get_logits,
                "close": generator.close,
                "close model": opened.close,
            }
            for name, call in calls.items():
                try:
                    call()
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"

        run_js("call => { call(); }")(inside)
        generator.generate_next_token()
        found["after"] = generator.get_next_tokens()
    opened.close()
    opened.close()
    return found


async def leak(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Buffers before and after loading, generating and closing twice."""
    before = probe.live_buffers()
    for _ in range(2):
        opened = await load(models, model)
        async with capstan.Generator(opened) as generator:
            generator.append_tokens([5])
            await generator.generate_next_token_async()
        alive = len(probe.live_buffers())
        await close_all()
    return {"before": before, "alive": alive, "after": probe.live_buffers()}


async def too_large(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """A KV cache larger than the adapter binds, on a model that goes on working with a smaller one."""
    opened = await Model.load(models[model], device="webgpu")
    before = sorted(probe.live_buffers())
    params = capstan.GeneratorParams(opened)
    error = await refusal(capstan.Generator(opened, params).prepare_async())
    after = sorted(probe.live_buffers())
    params.set_search_options(max_length=20)
    async with capstan.Generator(opened, params) as generator:
        generator.append_tokens([5, 6, 7, 8, 9])
        ids = [token async for token in generator]
        note = generator.capture_note
    await opened.aclose()
    return {"error": error, "same": before == after, "ids": ids, "note": note}


async def refusal(awaitable: Any) -> str:
    try:
        await awaitable
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
