"""Defines the device's interface for a loaded model, which makes the decoders of row_interface.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..memory import DeviceBuffer, DeviceSpan, Loan, Pools
from .row_interface import RowDecoder

if TYPE_CHECKING:
    from .lora_weights import LoraGraph, LoraWeights
    from .model_memory import ModelMemory
    from .model_origin import ModelOrigin
    from .picture_encoder import PictureEncoder
    from .speech_encoder import SpeechEncoder

__all__ = ["BOUND_MS", "DeviceModel", "TapeOptions"]

BOUND_MS = 250.0
"""Most milliseconds of a prefill run, unless the user sets a limit. Other GPU work can run between the dozens of
dispatches of a run; so this bounds the length of one dispatch and the delay of a cancel.
"""


@dataclass(frozen=True)
class TapeOptions:
    """How a model is to run on WebGPU."""

    capture: str = "tape"
    """'tape', 'ort' or 'off'."""
    passes: tuple[str, ...] | None = None
    """The passes over the recorded step, by their names in capstan.tape.PASSES. With None the GPU adapter decides."""
    prefill_ms: float = BOUND_MS
    """Most milliseconds of a prefill run."""
    configured: str | None = None
    """The option of the model's configuration that set `capture`, with its path; None if the caller set it or it is the
    default.
    """


class DeviceModel(Protocol):
    """A model's weights and sessions on a device."""

    device: str
    """'webgpu', 'wasm' or 'reference'."""
    adapter: str
    """The GPU adapter's name, as the device reports it."""

    memory: ModelMemory
    """The memory that the model needs."""
    lora: LoraGraph
    """The model's inputs for LoRA adapters."""
    encoder: SpeechEncoder | PictureEncoder | None
    """The encoder of a model that hears or sees; set by the load."""
    origin: ModelOrigin
    """The files from which the model was loaded; set by the host."""

    async def decoder(self, capacity: int, given: Loan | None = None) -> RowDecoder:
        """A decoder of one row, whose KV cache holds `capacity` positions. `given` has the buffers to use, by the names
        of the decoder's tensors; without it a released decoder is reused.

        Raises OutOfMemoryError over the device's limits.
        """

    async def row_decoder(
        self,
        rows: int,
        capacity: int,
        pools: Pools | None = None,
        lora: LoraWeights | None = None,
        unrecorded: bool = False,
    ) -> RowDecoder:
        """A decoder of `rows` rows, each with a KV cache of `capacity` positions, that runs the model with these
        adapters, over the user's buffers in `pools`. With `unrecorded` the decode step may be recorded later
        (`RowDecoder.records_after`), so that a first token comes sooner. Raises the errors of `decoder`, and
        BufferMismatchError for buffers that cannot be used.
        """

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        """Give the tapes of a decoder of this model other scratch; with None they allocate their own. Raises
        BufferMismatchError, OutOfMemoryError; in that case the tapes keep their scratch.
        """

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        """The decoder that continues from a decoder's state (caches, states, lengths, logits) with other LoRA adapters:
        the same decoder, or another with the same rows and capacity; in that case the given decoder is closed. Called
        while no burst is under way. Raises the errors of `row_decoder`; after an error the decoder is unchanged.
        """

    async def trim(self) -> None:
        """Free the memory of released decoders."""

    async def settled(self) -> None:
        """Wait until all tapes are made that the model makes while the device is unused."""

    def healthy(self) -> bool:
        """Whether the device still works."""

    async def close(self) -> None:
        """Free the weights and sessions; decoders that are still open fail from now on."""
