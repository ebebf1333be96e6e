"""onnxruntime-web's CPU execution provider: where there is no WebGPU, or only a software adapter."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from .. import graph
from ..config import GenaiConfig
from ..graph import GraphDescription
from ..graph.onnx_pb2 import ModelProto
from .host_sampled import HostSampledDecoder

__all__ = ["WasmModel", "WasmSession", "prepare"]


class WasmSequence(Protocol):
    """One sequence of the session, with its KV cache."""

    def step(self, ids: bytes, mask: bytes, past: int) -> Awaitable[array[float]]: ...


class WasmSession(Protocol):
    """The engine's one session (web/src/wasm.ts)."""

    def sequence(self, cache: dict[str, Any], logits: str, positions: bool) -> WasmSequence: ...
    async def close(self) -> None: ...


def prepare(parsed: ModelProto, config: GenaiConfig) -> tuple[bytes, GraphDescription]:
    """The model with the logits cut to the last position where that is possible, and its description."""
    pruned, _ = graph.last_token_logits(parsed, config.decoder.outputs.logits)
    return graph.serialize(pruned), graph.describe(parsed, config.decoder, config.vocab_size)


class WasmModel:
    """One CPU session; the KV cache of each decoder is kept in JavaScript."""

    device = "wasm"
    adapter = "cpu (wasm)"

    def __init__(
        self, session: WasmSession, about: GraphDescription, now: Callable[[], float], reason: str | None = None
    ):
        """`reason` is why it is this device, if it was not asked for."""
        self._note = "the wasm device has no GPU commands to record" + (f" (wasm, since {reason})" if reason else "")
        self._session = session
        self._about = about
        self._now = now

    async def decoder(self, capacity: int) -> HostSampledDecoder:
        return HostSampledDecoder(WasmRunner(self._session, self._about, capacity), capacity, self._note, self._now)

    def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        await self._session.close()


class WasmRunner:
    """One sequence over a cache of `capacity` positions."""

    def __init__(self, session: WasmSession, about: GraphDescription, capacity: int):
        self._capacity = capacity
        cache = {
            "pairs": [(pair.past, pair.present) for pair in about.cache],
            "dtype": about.cache_dtype,
            "dims": [1, about.num_kv_heads, capacity, about.head_size],
        }
        self._sequence = session.sequence(cache, about.logits, about.has_position_ids)

    async def run(self, ids: Sequence[int], past: int) -> array[float]:
        valid = past + len(ids)
        mask = array("q", [1] * valid + [0] * (self._capacity - valid))
        return await self._sequence.step(array("q", ids).tobytes(), mask.tobytes(), past)

    def close(self) -> None:
        """The cache is garbage once nobody holds the sequence."""
