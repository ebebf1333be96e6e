"""Generates with graphs of GGUF files; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model

from .running import parameters, take

FILE = "a%20model.gguf"


async def picked(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    file: str = FILE,
    device: str = "webgpu",
) -> dict[str, Any]:
    """The ids after a prompt, how steps were run, and the logits of the prompt's last position."""
    async with (
        await Model.load(models[model] + file, device=device, dtype="fp32") as opened,
        Generator(opened, parameters(opened, eos=[])) as generator,
    ):
        generator.append_tokens(prompt)
        logits = list(await generator.get_logits_async())
        ids = await take(generator, count)
        about = {"device": opened.device_type, "passes": dict(generator.tape_passes or {})}
        return {"ids": ids, "logits": logits, "capture": [generator.capture, generator.capture_note], **about}


async def refused(models: Mapping[str, str], *, model: str) -> str:
    """The error of loading it on the CPU provider."""
    try:
        await Model.load(models[model] + FILE, device="wasm")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
