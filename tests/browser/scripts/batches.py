"""Generators of several rows; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import capstan
from capstan import Generator

from .running import gpu, load, parameters


async def all_of(
    models: Mapping[str, str], *, runs: Sequence[dict[str, Any]], device: str, capture: str = "tape"
) -> list[dict[str, Any]]:
    """The results of generators, one after another: ids by step and row, and the sequences. A run with `steps` ends
    after so many."""
    found = []
    for run in runs:
        options = dict(run)
        model, prompts, returned = options.pop("model"), options.pop("prompts"), options.pop("returned")
        opened = await load(models, model, device=device, capture=capture)
        steps = options.pop("steps", None)
        params = parameters(opened, batch_size=len(prompts), num_return_sequences=returned, **options)
        async with Generator(opened, params) as generator:
            generator.append_tokens(prompts)
            picked: list[list[int]] = []
            while not generator.is_done() and len(picked) != steps:
                await generator.generate_next_token_async()
                picked.append(generator.get_next_tokens())
            sequences = [generator.get_sequence(row) for row in range(len(prompts) * returned)]
            found.append({"picked": picked, "sequences": sequences, "capture": generator.capture})
        await opened.trim()
    return found


async def shortlists(models: Mapping[str, str], *, rows: Sequence[Sequence[Any]]) -> list[list[float]]:
    """The GPU's shortlist for each (logits in hexadecimal, dtype, vocab, count, first element, rows)."""
    device = await capstan.open_device("webgpu")
    try:
        found = []
        for text, *about in rows:
            data = bytes.fromhex(text)
            with device.allocate(len(data)) as buffer:
                device.copy_cpu_to_device(buffer.span(0, len(data)), data)
                found.append(list(await gpu().shortlist(buffer.handle, *about)))
        return found
    finally:
        device.close()
