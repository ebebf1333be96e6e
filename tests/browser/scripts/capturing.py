"""Models whose configuration asks for graph capture or against it; runs in the page."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import CapstanError, FallbackWarning, Generator, Model, genai
from capstan.fallback import counted

from .running import parameters, take

__all__ = ["configured"]

PROMPT = [5, 6, 7, 8, 9]
OPTION = "enableGraphCapture"


def options(value: str) -> dict[str, Any]:
    """An overlay for genai_config.json."""
    given = {"provider_options": [{"webgpu": {OPTION: value}}]}
    return {"model": {"decoder": {"session_options": given}}}


async def opened(folder: str, way: str, value: str, capture: str | None) -> Model:
    if way == "file":
        return await Model.load(folder, device="webgpu", capture=capture)
    if way == "overlay":
        return await Model.load(folder, device="webgpu", overlay=options(value), capture=capture)
    config = genai.Config(folder)
    if way == "genai overlay":
        config.append_provider("webgpu")
        config.overlay(json.dumps(options(value)))
    else:
        config.set_provider_option("WebGpuExecutionProvider" if way == "long name" else "webgpu", OPTION, value)
    return genai.Model(config).capstan


async def configured(
    models: Mapping[str, str], *, model: str, cases: Sequence[tuple[str, str, str | None]]
) -> list[dict[str, Any]]:
    """For each (way, value, capture argument): the capture, its note, the warnings and eight greedy tokens; or the
    error."""
    found: list[dict[str, Any]] = []
    for way, value, capture in cases:
        counted.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                loaded = await opened(models[model], way, value, capture)
            except CapstanError as error:
                found.append({"error": [type(error).__name__, str(error)]})
                continue
            async with loaded, Generator(loaded, parameters(loaded, do_sample=False)) as generator:
                generator.append_tokens(PROMPT)
                ids = await take(generator, 8)
                outcome = {"ids": ids, "capture": generator.capture, "note": generator.capture_note}
        given = [str(one.message) for one in told if issubclass(one.category, FallbackWarning)]
        found.append(outcome | {"warned": [text for text in given if OPTION in text]})
    return found
