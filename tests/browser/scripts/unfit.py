"""Models of which a device, or Capstan, cannot compute all; runs in the page."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import capstan
from capstan import CapstanError, FallbackWarning, Model
from capstan.fallback import fallbacks

from .running import picked

page_host: Any = import_module("capstan._js.page_host")

__all__ = ["failing", "loaded", "stretched"]


async def loaded(
    models: Mapping[str, str],
    *,
    model: str,
    device: str,
    prompt: list[int],
    count: int,
    max_length: int | None = None,
    hardware: bool = False,
) -> dict[str, Any]:
    """The device and the picks of a model, or the error; the steps down; which weights were read. With `hardware`,
    'auto' chooses as if the GPU adapter were no software one."""
    choose_device = page_host.choose_device

    async def choose(asked: str) -> Any:
        return ("webgpu", None) if asked == "auto" else await choose_device(asked)

    if hardware:
        page_host.choose_device = choose
    try:
        return await load_and_pick(models[model], device, prompt, count, max_length)
    finally:
        page_host.choose_device = choose_device


async def load_and_pick(
    folder: str, device: str, prompt: list[int], count: int, max_length: int | None
) -> dict[str, Any]:
    before = fallbacks()
    asked: list[str] = []
    found: dict[str, Any]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            opened = await Model.load(
                folder,
                device=device,
                disable_file_mapped_weights=True,
                progress=lambda what, done, total: asked.append(what),
            )
            try:
                lengths = {} if max_length is None else {"max_length": max_length}
                ids = await picked(opened, prompt, count, **lengths)
                found = {"ids": ids, "device": opened.device_type, "context": opened.config.context_length}
            finally:
                await opened.aclose()
        except CapstanError as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        warned = [str(item.message) for item in caught if item.category is FallbackWarning]
    counts = {key: times - before.get(key, 0) for key, times in fallbacks().items() if times > before.get(key, 0)}
    return {**found, "warned": warned, "counted": counts, "read": sorted(set(asked))}


async def stretched(models: Mapping[str, str], *, model: str, max_length: int) -> dict[str, Any]:
    """The answers of `plan` with `max_length` and without it."""
    fit = await capstan.plan(models[model], device="webgpu")
    try:
        await capstan.plan(models[model], device="webgpu", max_length=max_length)
        error = "none"
    except CapstanError as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {"longest": fit.requirements.max_length, "error": error}


async def failing(models: Mapping[str, str], *, model: str, prompt: list[int], times: int) -> list[str]:
    """The errors of generations by one model on WebGPU, one after another."""
    found = []
    async with await Model.load(models[model], device="webgpu") as opened:
        for _ in range(times):
            try:
                await picked(opened, prompt, 2)
                found.append("none")
            except CapstanError as error:
                found.append(f"{type(error).__name__}: {error}")
    return found
