"""Runs sessions and sequences of a model on the CPU (web/src/worker/wasm.ts) for capstan.device.wasm."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from ..device.run_input import HostTensor
from ..stages.sampling import PeakedLogits
from .js_errors import typed_errors

__all__ = ["JsWasmSequence", "JsWasmSession"]


class JsWasmSession:
    """Implements WasmSession by calls to web/src/worker/wasm.ts."""

    def __init__(self, session: Any) -> None:
        self._js = session

    def sequence(self, spec: dict[str, Any]) -> JsWasmSequence:
        with typed_errors():
            return JsWasmSequence(self._js.decoder(json.dumps(spec)))

    @property
    def threads(self) -> int:
        """The number of threads of a program; None for a session of onnxruntime-web."""
        return int(self._js.threads)

    @property
    def alone(self) -> str:
        """The reason why a program has one thread although more threads were requested."""
        return str(self._js.alone)

    def target(self, location: str) -> Any:
        """Make a sink for a data file that has weights of a program (web/src/worker/cpu/coming_weights.ts)."""
        return self._js.target(location)

    async def close(self) -> None:
        with typed_errors():
            await self._js.close()


class JsWasmSequence:
    def __init__(self, sequence: Any) -> None:
        self._js = sequence

    async def step(self, ids: bytes, past: int, kept: int) -> array[float]:
        with typed_errors():
            logits, peaks = await self._js.step(ids, past, kept)
            found = PeakedLogits("f", logits.to_bytes())
            found.peaks = array("f", peaks.to_bytes())
            return found if kept == 1 else array("f", found)

    def carried(self, name: str) -> bytes:
        with typed_errors():
            return bytes(self._js.carried(name).to_bytes())

    def keep_states(self, slot: int) -> None:
        self._js.keepStates(slot)

    def bring_states(self, slot: int) -> None:
        self._js.bringStates(slot)

    def hidden_states(self) -> bytes:
        with typed_errors():
            return bytes(self._js.hiddenStates().to_bytes())

    def copy_from(self, other: JsWasmSequence) -> None:
        self._js.copyFrom(other._js)

    def adopt(self, other: JsWasmSequence, length: int) -> None:
        self._js.adopt(other._js, length)

    def write(self, name: str, data: bytes | memoryview, length: int) -> None:
        with typed_errors():
            self._js.write(name, data, length)

    def close(self) -> None:
        self._js.close()

    def feed(self, tensors: Sequence[HostTensor]) -> None:
        described = json.dumps([(each.name, each.dtype, each.dims) for each in tensors])
        with typed_errors():
            self._js.feed(described, b"".join(each.data for each in tensors))
