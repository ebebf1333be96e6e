"""Generates with graphs of GGUF files; runs in the page."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model

from .running import parameters, take


async def picked(
    models: Mapping[str, str], *, model: str, onnx: str, prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """The ids after a prompt, how steps were run, and the logits of the prompt's last position."""
    graphs = {"model.gguf": b64decode(onnx)}
    async with (
        await Model.load(models[model], device="webgpu", graphs=graphs) as opened,
        Generator(opened, parameters(opened, eos=[])) as generator,
    ):
        generator.append_tokens(prompt)
        logits = list(await generator.get_logits_async())
        ids = await take(generator, count)
        return {"ids": ids, "logits": logits, "capture": [generator.capture, generator.capture_note]}


async def refused(models: Mapping[str, str], *, model: str, onnx: str) -> str:
    """The error of loading it on the CPU provider."""
    try:
        await Model.load(models[model], device="wasm", graphs={"model.gguf": b64decode(onnx)})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
