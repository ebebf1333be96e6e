"""Lets the host read, replace or edit the logits of one row on the GPU."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from ...memory import DeviceBuffer, DeviceSpan
from ..device_interface import DeviceInterface

__all__ = ["RowLogits"]


@dataclass(frozen=True)
class RowLogits:
    """The logits of one row: [vocab] in the model's own element type."""

    device: DeviceInterface
    span: DeviceSpan
    dtype: str
    """'float32' or 'float16'."""
    vocab: int
    owner: str

    async def read(self) -> memoryview[float]:
        """Read the logits as float32 [vocab]."""
        found = array("f", bytes(4 * self.vocab))
        if self.dtype == "float32":
            await self.device.copy_device_to_cpu(self.span, out=found)
        else:
            with self._floats() as floats:
                self.device.cast(self.span, self.dtype, floats.span(), "float32")
                await self.device.copy_device_to_cpu(floats.span(), out=found)
        return memoryview(found)

    def write(self, values: memoryview[float]) -> None:
        """Replace all logits: float32 [vocab]."""
        if self.dtype == "float32":
            self.device.copy_cpu_to_device(self.span, values)
        else:
            with self._floats() as floats:
                self.device.copy_cpu_to_device(floats.span(), values)
                self.device.cast(floats.span(), "float32", self.span, self.dtype)

    def edit(self, edits: Mapping[int, float]) -> None:
        """Replace some logits, by token; values beyond the type's range become infinite."""
        kind, size = ("f", 4) if self.dtype == "float32" else ("e", 2)
        with self.device.batch():
            for place, value in edits.items():
                try:
                    data = struct.pack(kind, value)
                except OverflowError:
                    data = struct.pack(kind, math.copysign(math.inf, value))
                self.device.copy_cpu_to_device(self.span.sub(size * place, size), data)

    def _floats(self) -> DeviceBuffer:
        """Memory for the logits as float32."""
        return self.device.allocate(4 * self.vocab, label="logits float32", category="io", owner=self.owner)
