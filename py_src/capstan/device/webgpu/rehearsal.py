"""Decode steps that are played to be timed and leave no trace."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...errors import DeviceUnavailableError, OptionError
from ...memory import DeviceBuffer
from .engine import GpuEngine
from .sequence_buffers import SequenceBuffers

__all__ = ["Rehearsal", "Timed", "traffic"]

T = TypeVar("T")

Bound = tuple[str, str, int]
"""One binding of a dispatch: the buffer's label and category, and the bytes bound."""

Timed = tuple[int, str, float, int]
"""A dispatch: its place, its label, milliseconds, the bytes it moves (0 where they are not known)."""

KEPT = ("logits", "mask", "input ids", "positions", "state", "ring")
"""The buffers that steps change, besides states; cache entries past the sequence are dead, so caches need no copy."""

UNLIKELY = -65504.0
"""The logit of every token but a forced one: float16's least, so that no search picks another."""


@dataclass(frozen=True)
class Rehearsal:
    """A tape and a sampler at the end of a sequence of `length` positions; no burst may be under way."""

    engine: GpuEngine
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
        """Raise DeviceUnavailableError if the GPU adapter has no timestamp queries."""
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

    async def operation_times(self, rounds: int) -> list[list[Timed]]:
        """Each dispatch of the next step, `rounds` times."""
        self.require_timestamps()
        found = await self._play(rounds, lambda: self.engine.operation_times(self.tape, self.sampler, self.length))
        share = self.length / self.buffers.capacity
        return [
            [(place, label, ms, traffic(label, bound, share)) for place, label, ms, bound in times] for times in found
        ]

    async def replay(self, steps: int, picks: int) -> float:
        """Milliseconds a pick in bursts of `picks` without Python."""
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
        """One step of the tape for each id, from the end of `sequence` on: `see` its logits, then have the sampler pick
        that id. Bursts that ran ahead of the sequence may have gone on with other tokens, which is undone before."""
        if self.buffers.states:
            raise OptionError(
                "tokens cannot be forced on a model whose states each run overwrites: they are ahead of the sequence; "
                "append the tokens and read the logits instead"
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
        """The results of `rounds` calls of `action`, each from the present state, which is restored afterwards."""
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
                        # One more cancellation than the one that is on its way changes nothing.
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([playing])
                    device.copy_tensors([(copy, span) for span, copy in pairs])
            return found
        finally:
            for copy in copies:
                copy.close()


def traffic(operation: str, bound: Sequence[Bound], share: float) -> int:
    """Bytes that a dispatch reads and writes: its bindings, or the used part of those that it binds whole.

    `share` is the sequence's part of the capacity. A dispatch uses that part of the KV caches, the mask and attention's
    split results. Tables in which it looks up one row (rotary embedding, token embedding) are not counted.
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
