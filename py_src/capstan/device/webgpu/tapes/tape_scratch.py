"""Provides scratch memory for the kernels of tapes: buffers that each tape allocates, or the user's buffers, which
tapes use in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import zip_longest

from ....fallback import fall_back
from ....memory import DeviceSpan
from ..gpu_engine import GpuTapes

__all__ = ["TapeScratch", "largest"]


def largest(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Bytes of buffers, largest first, that are large enough for both lists."""
    return [max(pair) for pair in zip_longest(first, second, fillvalue=0)]


class TapeScratch:
    """The scratch of the tapes of one sequence, or of joint rows. Steps reach the device in order, and none reads the
    leftovers of another, so that all can share buffers.
    """

    def __init__(self, engine: GpuTapes, note: Callable[[int, Sequence[int]], None]) -> None:
        """`note` gets the number of rows of each tape, and the bytes of the buffers that it needs, largest first."""
        self._engine = engine
        self._note = note
        self._tapes: dict[int, list[int]] = {}
        """Bytes of each scratch buffer, by tape."""
        self.given: Sequence[DeviceSpan] | None = None
        """The user's buffers, each used from offset 0, largest first."""

    async def add(self, tape: int, what: str, rows: int = 1) -> None:
        """Manage a new tape. A tape that needs more than the given scratch keeps its own scratch."""
        sizes = self._engine.tape_scratch(tape)
        self._tapes[tape] = sizes
        self._note(rows, sorted(sizes, reverse=True))
        if self.given is None or not sizes:
            return
        if self._fits(tape, self.given):
            await self._move(tape, self.given)
        else:
            needed, there = (sum(given) for given in (sizes, [span.length for span in self.given]))
            needs = f"{what} needs {len(sizes)} buffers of {needed} bytes in all"
            fall_back(
                "given scratch",
                f"{needs}; {len(self.given)} of {there} bytes were given",
                "that tape allocates its own scratch; query_memory_requirements lists the needs of all tapes",
            )

    def drop(self, tape: int) -> None:
        """Forget a tape that is closed."""
        self._tapes.pop(tape, None)

    async def give(self, spans: Sequence[DeviceSpan] | None) -> None:
        """Have all tapes use these buffers; with None each allocates its own scratch again. Raises OutOfMemoryError; in
        that case all tapes keep their scratch.
        """
        async with AsyncExitStack() as undo:
            for tape in self._tapes:
                if self._fits(tape, spans) or self._fits(tape, self.given):
                    await self._move(tape, spans)
                    undo.push_async_callback(self._move, tape, self.given)
            undo.pop_all()
        self.given = spans

    def _fits(self, tape: int, spans: Sequence[DeviceSpan] | None) -> bool:
        sizes = sorted(self._tapes[tape], reverse=True)
        there = [span.length for span in spans or ()]
        return bool(sizes) and len(sizes) <= len(there) and all(map(int.__le__, sizes, there))

    async def _move(self, tape: int, spans: Sequence[DeviceSpan] | None) -> None:
        """Have a tape use these buffers, its largest part in the first one; it allocates its own scratch if they are
        too few or too small.
        """
        if spans is None or not self._fits(tape, spans):
            await self._engine.give_scratch(tape, None)
            return
        sizes = self._tapes[tape]
        parts = [(0, 0, 0)] * len(sizes)
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        for number, span in zip(order, spans, strict=False):
            parts[number] = span.buffer.handle, span.offset, sizes[number]
        await self._engine.give_scratch(tape, parts)
