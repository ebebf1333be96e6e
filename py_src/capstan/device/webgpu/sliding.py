"""Moves the rows of sliding caches, and writes the sequence's base, from which kernels count positions.

Moves are queued like all other work, so that earlier submits find the rows in their old places. The host only needs an
upper bound of the length that the sequence has after the next submit.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...fallback import fall_back
from ...graph import GraphDescription, SlidingCaches
from ...memory import DeviceSpan, round_up
from ..device_interface import DeviceInterface
from ..element_types import byte_count
from ..run_input import WRITTEN

__all__ = ["BASE", "SlidingWindow", "reached", "row_bytes", "table_span"]

BASE = 7
"""The word of the sampler's state that holds the base, for our kernels."""


def table_span(name: str) -> str:
    """The name of the span of a table of sliding caches."""
    return f"window {name}"


def row_bytes(about: GraphDescription, head_size: int) -> int:
    """Bytes of one position of a head."""
    return byte_count(about.cache_dtype, (head_size,))


@dataclass
class SlidingWindow:
    """The sliding caches of one sequence; `base` is the first position that they hold."""

    device: DeviceInterface
    about: GraphDescription
    sliding: SlidingCaches
    tables: Sequence[bytes]
    """The rows of `sliding.tables` for all positions."""
    capacity: int
    room: int
    """Positions that the caches hold."""
    span: Callable[[str], DeviceSpan]
    """Gives a span of the sequence by its name."""
    fed: bool = True
    """Whether onnxruntime-web reads the base, too."""
    base: int = 0

    @property
    def slides(self) -> bool:
        """Whether the sequence may become longer than these caches."""
        return self.room < self.capacity

    def holds(self, length: int) -> bool:
        """Whether a run can continue after `length` positions: the caches hold the window of its first token."""
        return self.sliding.holds(self.base, length)

    def make_room(self, length: int, count: int) -> None:
        """Make room for `count` positions after the first `length`. A few of the `length` positions may not exist in
        the end; for that case half of the slack stays before the window. A run after 0 positions begins the sequence
        again. Raises ValueError if the window before `length` is gone: continue after a length that `holds`.
        """
        if length == 0:
            self.rebase(0)
        if not self.holds(length):
            raise ValueError(f"the caches begin at position {self.base} and no longer hold the window before {length}")
        end = min(length + count, self.capacity)
        if end - self.base <= self.room:
            return
        self.slide(self.kept_from(length, end - length), length)

    def slide(self, base: int, length: int) -> None:
        """Drop the positions before `base` from a sequence of `length` positions."""
        if base > self.base:
            self._move(base - self.base, length - base)
            self.rebase(base)

    def kept_from(self, length: int, count: int) -> int:
        """The first position to keep when `count` positions follow the first `length`."""
        window = self.sliding.window
        return max(0, length - max(window, min(self.room - count, window + (self.room - window) // 2)))

    def probed_base(self, length: int) -> int:
        """The base for the check of a step after `length` positions; not 0 if possible."""
        least, most = max(0, length + 1 - self.room), max(0, length - self.sliding.window)
        return max(least, most // 2) if self.slides else 0

    def rebase(self, base: int) -> None:
        """Make `base` the first position of the caches: in the sampler's state, for onnxruntime-web, and in the rotary
        tables.
        """
        if base == self.base:
            return
        self.base = base
        with self.device.batch():
            self.write_base()
            self.fill_tables()

    def write_base(self) -> None:
        """Write the base to the memory that kernels read."""
        words = array("I", [self.base])
        self.device.copy_cpu_to_device(self.span("state").sub(4 * BASE, 4), words)
        if self.fed:
            self.device.copy_cpu_to_device(self.span("window base").sub(0, 4), words)

    def fill_tables(self) -> None:
        """Write the rows of the rotary tables, beginning with the base."""
        for table, rows in zip(self.sliding.tables, self.tables, strict=True):
            row = byte_count(table.dtype, (table.width,))
            part = memoryview(rows)[self.base * row : (self.base + self.room) * row]
            padded = part if len(part) % WRITTEN == 0 else part.tobytes().ljust(round_up(len(part), WRITTEN), b"\0")
            self.device.copy_cpu_to_device(self.span(table_span(table.name)).sub(0, len(padded)), padded)

    def _move(self, shift: int, kept: int) -> None:
        """Move `kept` rows of each head `shift` rows to the front, by one copy for all heads of a cache: a head's
        dropped rows land after the kept rows of the previous head, where rows are free.
        """
        pairs = []
        for pair in self.about.cache:
            if pair.past not in self.sliding.pasts:
                continue
            row, whole = row_bytes(self.about, pair.head_size), self.span(f"kv {pair.past}")
            length = ((pair.heads - 1) * self.room + kept) * row
            pairs.append((whole.sub(shift * row, length), whole.sub(0, length)))
        self.device.copy_tensors(pairs)


def reached(sliding: SlidingWindow | None, length: int) -> int:
    """The last position, at most `length`, after which a sequence can continue: it is 0, which is a fallback, if the
    sliding caches no longer hold the window before `length`.
    """
    if sliding is None or length == 0 or sliding.holds(length):
        return length
    reason = f"its caches over a window of {sliding.sliding.window} positions hold only the last ones"
    fall_back("a sequence that continues after fewer positions than it has", reason, "it is run again from its start")
    return 0
