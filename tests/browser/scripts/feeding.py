"""A model with an input that Capstan does not know, and the one class that feeds it; runs in the page."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model
from capstan.device.run_input import HostTensor, Run, RunInput, RunTensor, SequenceMemory
from capstan.device.run_inputs import KINDS

from .running import parameters, take

__all__ = ["factors"]

NAME = "factor"


class Factor(RunInput):
    """A float32 [1] by which the graph multiplies its logits."""

    value = 1.0

    def feeds(self, run: Run) -> list[RunTensor]:
        return [RunTensor(NAME, NAME, "float32", (1,))]

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        memory.device.copy_cpu_to_device(memory.spans[NAME].sub(0, 4), array("f", [self.value]))

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        memory.device.copy_cpu_to_device(memory.spans[NAME].sub(0, 4), array("f", [self.value]))

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        return [HostTensor(NAME, "float32", (1,), array("f", [self.value]).tobytes())]


async def factors(
    models: Mapping[str, str], *, model: str, device: str, prompt: list[int], count: int, values: list[float]
) -> list[dict[str, Any]]:
    """The picks with each of the factors, and how steps were run."""
    found: list[dict[str, Any]] = []
    KINDS.append(Factor)
    try:
        async with await Model.load(models[model], device=device) as opened:
            for Factor.value in values:
                async with Generator(opened, parameters(opened)) as generator:
                    generator.append_tokens(prompt)
                    found.append({"ids": await take(generator, count), "capture": generator.capture})
    finally:
        KINDS.remove(Factor)
    return found
