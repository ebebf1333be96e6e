"""Plays a decoder's tape to time decode steps or to force tokens, then restores the buffers that the steps changed.

`capstan.measure` gets a Rehearsal from WebGpuDecoder.rehearsal. A Rehearsal returns milliseconds, or passes the logits
of each forced token to a callback.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...errors import DeviceUnavailableError, OptionError
from ...memory import DeviceBuffer
from .gpu_engine import GpuEngine
from .sequence_buffers import SequenceBuffers

__all__ = ["Rehearsal", "Timed", "traffic"]

T = TypeVar("T")

Bound = tuple[str, str, int]
"""One binding of a dispatch: the buffer's label and category, and the bytes bound."""

Timed = tuple[int, str, float, int]
"""A dispatch: its place, its label, milliseconds, the bytes it moves (0 where they are not known)."""

KEPT = ("logits", "mask", "input ids", "positions", "state", "ring")
"""The spans that steps change and that are restored afterwards, besides the states. KV caches are left out: their
entries past the end of the sequence are dead."""

UNLIKELY = -65504.0
"""The logit of every token except the forced one: the lowest finite float16, so that no search picks another token."""


@dataclass(frozen=True)
class Rehearsal:
    """Plays a tape and its sampler from the end of a sequence of `length` positions, while no burst is in flight."""

    engine: GpuEngine
    buffers: SequenceBuffers
    tape: int
    sampler: int
    length: int
    cursor: int
    """The ring index of the next pick."""
    in_flight: int
    """The number of bursts that the decode loop keeps in flight."""

    @property
    def room(self) -> int:
        """The number of steps until the caches are full."""
        return self.buffers.end - self.length

    def require_timestamps(self) -> None:
        """Raise DeviceUnavailableError if the GPU adapter has no timestamp queries."""
        about = self.engine.adapter()
        if "timestamp-query" not in about["features"]:
            raise DeviceUnavailableError(
                "GPU time needs the WebGPU feature timestamp-query, which this adapter lacks (it has "
                f"{', '.join(about['features'])}); use measure.replay, or another adapter"
            )

    async def step_time(self, steps: int, rounds: int) -> list[float]:
        """GPU milliseconds per decode step: one number for each of `rounds` submits of `steps` steps."""
        self.require_timestamps()
        return await self._play(rounds, lambda: self.engine.step_time(self.tape, self.sampler, steps, self.length))

    async def operation_times(self, rounds: int) -> list[list[Timed]]:
        """The timed dispatches of the next decode step, one list for each of `rounds` plays."""
        self.require_timestamps()
        found = await self._play(rounds, lambda: self.engine.operation_times(self.tape, self.sampler, self.length))
        share = self.length / self.buffers.capacity
        return [
            [(place, label, ms, traffic(label, bound, share)) for place, label, ms, bound in times] for times in found
        ]

    async def replay(self, steps: int, picks: int) -> float:
        """Milliseconds per pick over `steps` steps, in bursts of `picks` that JavaScript alone submits and reads."""
        [found] = await self._play(
            1,
            lambda: self.engine.replay(self.tape, self.sampler, steps, picks, self.length, self.cursor, self.in_flight),
        )
        return found

    async def forced(
        self,
        sequence: Sequence[int],
        ids: Sequence[int],
        logits: Callable[[], Awaitable[memoryview[float]]],
        set_logits: Callable[[memoryview[float]], None],
        see: Callable[[memoryview[float]], None],
    ) -> None:
        """Play one step for each of `ids`, from the end of `sequence` on: call `see` with the logits, then make the
        sampler pick that id. Tokens that bursts have computed past `sequence` are discarded first. Raises OptionError
        if the model has states, or if the search picks another token.
        """
        if self.buffers.states:
            raise OptionError(
                "tokens cannot be forced on a model whose states each run overwrites: the states are ahead of the "
                "sequence; append the tokens and read the logits instead"
            )
        length = len(sequence)

        async def take() -> None:
            self.buffers.set_input(sequence[-1], length - 1)
            for place, token in enumerate(ids):
                self.engine.play_once(self.tape, length + place)
                found = await logits()
                see(found)
                wanted = array("f", [UNLIKELY]) * len(found)
                wanted[token] = 0.0
                set_logits(memoryview(wanted))
                *_, picked = await self.engine.burst(self.tape, self.sampler, 1, True, length + place + 1, place)
                if picked != token:
                    raise OptionError(f"token {token} cannot be forced: the search picks {int(picked)} instead")

        await self._play(1, take)

    async def _play(self, rounds: int, action: Callable[[], Awaitable[T]]) -> list[T]:
        """Call `action` `rounds` times, restore the present state after each call, and return the results."""
        device = self.buffers.device
        kept = [self.buffers.spans[name] for name in KEPT if name in self.buffers.spans] + self.buffers.states
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
                    # The GPU continues when the wait is cancelled: its steps must end before the state is restored.
                    while not playing.done():
                        # A CancelledError is already being raised; further cancellations change nothing.
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([playing])
                    device.copy_tensors([(copy, span) for span, copy in pairs])
            return found
        finally:
            for copy in copies:
                copy.close()


def traffic(operation: str, bound: Sequence[Bound], share: float) -> int:
    """Count the bytes that a dispatch reads and writes in its bindings.

    `share` is the length of the sequence over the capacity. KV caches, the mask and attention's split results count by
    that share, because a dispatch uses only that part of them. Tables in which it looks up one row (rotary embedding,
    token embedding) do not count.
    """
    attention = operation.startswith("attention") or any(label.startswith("kv ") for label, _, _ in bound)
    lookup = any(label == "input ids" for label, _, _ in bound)
    total = 0.0
    for label, category, size in bound:
        if category == "weights" and (lookup or "cos_cache" in label or "sin_cache" in label):
            continue
        grows = label.startswith("kv ") or label == "mask" or (attention and category in ("kernels", "scratch"))
        total += size * share if grows else size
    return round(total)
