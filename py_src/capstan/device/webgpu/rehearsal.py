"""Decode steps that are played to be timed and leave no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...errors import DeviceUnavailableError
from ...memory import DeviceBuffer
from .engine import GpuTiming
from .sequence_buffers import SequenceBuffers

__all__ = ["Rehearsal"]

T = TypeVar("T")

KEPT = ("logits", "mask", "input ids", "positions", "state", "ring")
"""What steps change besides the caches, whose entries past the sequence are dead."""


@dataclass(frozen=True)
class Rehearsal:
    """A tape and a sampler at the end of a sequence of `length` positions; no burst may be under way."""

    engine: GpuTiming
    buffers: SequenceBuffers
    tape: int
    sampler: int
    length: int
    cursor: int
    """Ring index of the next pick."""
    in_flight: int
    """Bursts that the decode loop keeps under way."""

    @property
    def room(self) -> int:
        """Steps up to the cache's end."""
        return self.buffers.capacity - self.length

    def require_timestamps(self) -> None:
        """Raise DeviceUnavailableError where the GPU's time cannot be asked for."""
        about = self.engine.adapter()
        if "timestamp-query" not in about["features"]:
            raise DeviceUnavailableError(
                f"GPU time needs the WebGPU feature timestamp-query, this adapter has {', '.join(about['features'])}; "
                "use measure.replay, or another adapter"
            )

    async def step_time(self, steps: int, rounds: int) -> list[float]:
        """Milliseconds of GPU time a step, in each of `rounds` submits of `steps` steps."""
        self.require_timestamps()
        return await self._play(rounds, lambda: self.engine.step_time(self.tape, self.sampler, steps, self.length))

    async def operation_times(self, rounds: int) -> list[list[tuple[int, str, float]]]:
        """(place, label, milliseconds) of each dispatch of the next step, `rounds` times."""
        self.require_timestamps()
        return await self._play(rounds, lambda: self.engine.operation_times(self.tape, self.sampler, self.length))

    async def replay(self, steps: int, picks: int) -> float:
        """Milliseconds a pick in bursts of `picks` without Python."""
        [found] = await self._play(
            1,
            lambda: self.engine.replay(self.tape, self.sampler, steps, picks, self.length, self.cursor, self.in_flight),
        )
        return found

    async def _play(self, rounds: int, action: Callable[[], Awaitable[T]]) -> list[T]:
        """What `action` gives, each time from the state that is there now; afterwards that state is back."""
        device = self.buffers.device
        kept = [self.buffers.spans[name] for name in KEPT if name in self.buffers.spans]
        copies: list[DeviceBuffer] = []
        try:
            for span in kept:
                copies.append(device.allocate(span.length, category="kernels", owner="timing"))
            pairs = [(span, copy.span()) for span, copy in zip(kept, copies, strict=True)]
            device.copy_tensors(pairs)
            found = []
            for _ in range(rounds):
                playing = asyncio.ensure_future(action())
                try:
                    found.append(await asyncio.shield(playing))
                finally:
                    # The GPU goes on when the wait is cancelled: its steps must not follow what is put back here.
                    while not playing.done():
                        # One more cancellation than the one that is on its way changes nothing.
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([playing])
                    device.copy_tensors([(copy, span) for span, copy in pairs])
            return found
        finally:
            for copy in copies:
                copy.close()
