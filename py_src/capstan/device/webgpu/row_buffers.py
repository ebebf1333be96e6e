"""Allocates the buffers of several sequences that advance together. Each buffer has a part for every row."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...errors import ClosedError
from ...graph import GraphDescription
from ...memory import (
    ROWS_APART,
    BufferRequest,
    DeviceBuffer,
    DeviceSpan,
    Loan,
    cache_sizes,
    cross_sizes,
    row_items,
    window_table_sizes,
)
from ..device_interface import BoundSpan, DeviceInterface
from ..element_types import byte_count
from .sequence_buffers import STATE_WORDS, SequenceBuffers
from .sliding import BASE, SlidingWindow

__all__ = ["RowBuffers"]

UNCOUNTED = 4
"""The word of a row's state that holds the number of tokens that count in addition to its length."""


@dataclass
class RowBuffers:
    """The spans of the rows by name: those of SequenceBuffers, row after row. Positions and capacity count tokens."""

    device: DeviceInterface
    about: GraphDescription
    owner: str
    rows: int
    capacity: int
    spans: Mapping[str, DeviceSpan]
    apart: DeviceSpan
    """Memory that keeps rows of one tensor while `copy` overwrites them."""
    owned: tuple[DeviceBuffer, ...]
    given: Loan | None
    """Buffers of the user, held until `close`."""
    lengths: list[int] = field(default_factory=list)
    """Upper bounds of the lengths on the device: a row that ended within a burst is shorter."""
    unstepped: set[int] = field(default_factory=set)
    """Rows whose last token is not known here: a step would run another token in its place."""
    cursor: int = 0
    """The ring index of the rows' next picks."""
    closed: bool = False
    """Whether the buffers are freed or being freed."""
    uncounted: list[int] = field(default_factory=list)
    windows: list[SlidingWindow] = field(default_factory=list)
    """The sliding caches of each row; none if all caches hold every position."""

    @classmethod
    async def allocate(cls, one: SequenceBuffers, rows: int, owner: str, given: Loan | None = None) -> RowBuffers:
        """Allocate all but the `given` buffers, for rows of the capacity of `one`, which runs their prompts. Raises
        OutOfMemoryError; in that case nothing stays allocated.
        """
        device, about, capacity, chunk = one.device, one.about, one.capacity, one.chunk
        held = dict(given.spans) if given is not None else {}
        ours = [item for item in row_items(about, rows, capacity, chunk) if item.name not in held]
        made = await device.allocate_all([BufferRequest(item.name, item.bytes, item.pool) for item in ours], owner)
        held |= {item.name: buffer.span() for item, buffer in zip(ours, made, strict=True)}
        logits = byte_count(about.logits_dtype, (about.vocab_size,))
        sizes = {
            **cache_sizes(about, capacity, chunk),
            **cross_sizes(about),
            "state": 4 * STATE_WORDS,
            "ring": 4 * capacity,
        }
        sizes |= window_table_sizes(about, capacity, chunk) if one.slides else {}
        sizes |= {"input ids": 8, "mask": 8 * capacity, "positions": 8, "logits": logits}
        spans = {name: held[f"rows {name}"].sub(0, rows * size) for name, size in sizes.items()}
        found = cls(device, about, owner, rows, capacity, spans, held[ROWS_APART], tuple(made), given)
        found.lengths, found.uncounted = [0] * rows, [0] * rows
        if one.sliding is not None and one.slides:
            for row in range(rows):
                span = partial(found.part, row=row)
                found.windows.append(replace(one.sliding, span=span, fed=False, base=0))
                found.windows[row].write_base()
                found.windows[row].fill_tables()
        return found

    def window(self, row: int) -> SlidingWindow | None:
        """The sliding caches of a row, if there are any."""
        return self.windows[row] if self.windows else None

    def make_room(self, row: int, length: int, count: int) -> None:
        """Make room for `count` positions after a row's first `length`; see SlidingWindow."""
        if self.windows:
            self.windows[row].make_room(length, count)

    def most_ahead(self, row: int) -> int:
        """The largest number of positions for which `make_room` can make room."""
        window = self.window(row)
        return self.capacity if window is None else window.room - window.sliding.window

    def rebase(self, row: int, base: int) -> None:
        """Note that a row takes over caches that hold the positions from `base` on."""
        if self.windows:
            self.windows[row].rebase(base)

    def handle(self, name: str) -> int:
        handle: int = self.spans[name].buffer.handle
        return handle

    def bound(self) -> dict[str, tuple[int, int, int]]:
        """For each tensor that a tape's kernels bind, by name: the handle, offset and bytes of all its rows. Offsets
        and sizes are multiples of 4."""
        tables = [name for name in self.spans if name.startswith("window ")]
        spans = {name: self.spans[name] for name in (*self.carried, *tables, "logits", "input ids", "state")}
        return {name: (span.buffer.handle, span.offset, -(-span.length // 4) * 4) for name, span in spans.items()}

    def part(self, name: str, row: int) -> DeviceSpan:
        """The span of one row of a tensor."""
        size = self.spans[name].length // self.rows
        return self.spans[name].sub(row * size, size)

    @property
    def caches(self) -> list[str]:
        return [f"kv {pair.past}" for pair in self.about.cache]

    @property
    def crosses(self) -> list[str]:
        """The names of the encoder's outputs."""
        return [*cross_sizes(self.about)]

    @property
    def carried(self) -> list[str]:
        """The names of the tensors that are copied with a row, besides its logits and its id."""
        return [*self.caches, *self.crosses]

    def hear(self, row: int, heard: Mapping[str, BoundSpan]) -> None:
        """Copy an encoder's outputs into the row's part."""
        parts = [(each.span, self.part(f"cross {name}", row)) for name, each in heard.items()]
        # onnxruntime-web's buffers may be larger than their tensors.
        self.device.copy_tensors([(source.sub(0, part.length), part) for source, part in parts])

    def from_one(self, row: int, one: SequenceBuffers) -> None:
        """Copy a sequence's caches and logits to a row."""
        names = [*self.carried, "logits"]
        self.device.copy_tensors([(self._of(one, name), self.part(name, row)) for name in names])
        self.rebase(row, one.base)

    def to_one(self, row: int, one: SequenceBuffers, names: Sequence[str] = ()) -> None:
        """Copy the row's caches, or the named tensors, to a sequence."""
        self.device.copy_tensors([(self.part(name, row), self._of(one, name)) for name in names or self.carried])
        if one.sliding is not None and self.windows:
            one.sliding.rebase(self.windows[row].base)

    def take(self, row: int, other: RowBuffers) -> None:
        """Copy row number `row` of `other` to the row of the same number here."""
        names = [*self.carried, "logits", "input ids"]
        self.device.copy_tensors([(other.part(name, row), self.part(name, row)) for name in names])
        self.rebase(row, other.windows[row].base if other.windows else 0)

    def _of(self, one: SequenceBuffers, name: str) -> DeviceSpan:
        return one.spans[name].sub(0, self.spans[name].length // self.rows)

    def copy(self, moved: Mapping[int, int]) -> None:
        """Replace each of these rows by a copy of its source row, all at once, one buffer at a time."""
        if not moved:
            return
        sources = sorted(set(moved.values()) & set(moved))
        """Rows that are both copied and overwritten."""
        for name in [*self.carried, "logits", "input ids"]:
            size = self.spans[name].length // self.rows
            if not sources:
                self.device.copy_tensors([(self.part(name, old), self.part(name, new)) for new, old in moved.items()])
                continue
            kept = {row: self.apart.sub(place * size, size) for place, row in enumerate(sources)}
            self.device.copy_tensors([(self.part(name, row), span) for row, span in kept.items()])
            pairs = [(kept.get(old) or self.part(name, old), self.part(name, new)) for new, old in moved.items()]
            self.device.copy_tensors(pairs)
        bases = [window.base for window in self.windows]
        for new, old in moved.items() if bases else ():
            self.rebase(new, bases[old])

    def set_inputs(self, tokens: Sequence[int]) -> None:
        """Set the next step's ids."""
        self.device.copy_cpu_to_device(self.spans["input ids"], array("q", tokens))

    def set_input(self, row: int, token: int) -> None:
        """Set the id of a row's next step."""
        self.device.copy_cpu_to_device(self.part("input ids", row), array("q", [token]))

    def set_length(self, row: int, length: int) -> None:
        """Set a row's state: `length` valid positions, the next pick at `cursor` in the ring, not done."""
        words = array("I", [length, self.cursor, *([0] * (STATE_WORDS - 2))])
        words[UNCOUNTED] = self.uncounted[row]
        words[BASE] = self.windows[row].base if self.windows else 0
        self.device.copy_cpu_to_device(self.part("state", row), words)

    def set_uncounted(self, row: int, count: int) -> None:
        """Set the number of tokens that count for `min_length` in addition to the row's length. The next `set_length`
        of the row applies it.
        """
        self.uncounted[row] = count

    def require_open(self) -> None:
        if self.closed:
            raise ClosedError("the model of this generator was closed; load it again")

    def close(self) -> None:
        for buffer in self.owned:
            buffer.close()
        if self.given is not None:
            self.given.end()
