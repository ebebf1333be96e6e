"""Finds the operations of a program after which threads wait for one another.

Threads wait between two operations if the later operation reads or writes what the earlier one wrote, or if it writes
what the earlier one read.

    with_waits(words)    the words, with the word WAITS set in each operation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .cpu_program import FLOAT, GROUP, KEPT, ROWS, UNIT, WAITS, WORDS, Kind, Split, quantized_bytes

__all__ = ["with_waits"]

CACHES = 1 << 40
"""The place of the caches, for comparisons."""

ALL = ("all",)
"""All threads have it, each an unknown part."""
EACH = ("each",)
"""Every thread writes all of it, the same."""


@dataclass(frozen=True)
class Access:
    """The use of a part of the memory."""

    begin: int
    end: int
    owner: tuple[object, ...]
    """Accesses of one owner, which names where and how the memory is shared, are each thread's own."""
    writes: bool = False

    def conflicts(self, later: Access) -> bool:
        """Whether threads must wait between this access and a later one."""
        if self.end <= later.begin or later.end <= self.begin or not (self.writes or later.writes):
            return False
        if self.owner == EACH and self.writes and not later.writes:
            return False
        return self.owner != later.owner or self.owner == ALL


def with_waits(words: Sequence[int]) -> list[int]:
    found = list(words)
    for single, flag in ((True, 1), (False, 2)):
        since: list[Access] = []
        for at in range(0, len(found), WORDS):
            given = list(accesses(found[at : at + WORDS], single))
            if any(before.conflicts(each) for before in since for each in given):
                # Kept tokens may be one or several in a run of several.
                found[at - WORDS + WAITS] |= flag | (3 if found[at - WORDS + 1] or found[at + 1] else 0)
                since = []
            since += given
        found[len(found) - WORDS + WAITS] |= flag
    return found


def accesses(words: Sequence[int], single: bool) -> Iterator[Access]:
    """The places that an operation reads and writes, for a run of one token or of several."""
    kind, kept, x, y, width = words[:5]
    unit, split = words[UNIT], Split(words[UNIT + 1])
    rows = KEPT if kept else ROWS
    # A kept token may be the only one in a run of several.
    shared = split == Split.COLUMNS or (split == Split.ROWS_OR_COLUMNS and (single or kept))
    how: tuple[object, ...] = (
        ("columns", unit) if shared else ("parts", unit) if split == Split.PARTS else ("rows", kept)
    )

    def of(address: int, row: int, whole: bool = False, writes: bool = False) -> Access:
        owner = ALL if whole else (*how, address, row)
        return Access(address, address + rows * row, owner, writes)

    if kind == Kind.ATTEND:
        yield from attention(words, rows, x, words[11])
        heads = ("parts", width, y, FLOAT * width * words[5])
        yield Access(y, y + rows * FLOAT * width * words[5], heads, writes=True)
        for place in words[9:11]:
            yield Access(CACHES + place, CACHES + place + FLOAT * width * words[6], ALL)
    elif kind == Kind.ROTATE:
        yield from (replace(each, writes=True) for each in attention(words, rows, x, y))
        size = FLOAT * width * words[6]
        for place, row in zip(words[13:15], words[15:17], strict=True):
            yield Access(place, place + (rows - 1) * row + size, ALL)
        for place in words[9:11]:
            yield Access(CACHES + place, CACHES + place + size, EACH if single else ALL, writes=True)
    elif kind == Kind.PRODUCT:
        yield of(x, quantized_bytes(width), whole=True)
        yield of(y, FLOAT * GROUP * words[5], writes=True)
    elif kind == Kind.QUANTIZE:
        yield of(x, FLOAT * width)
        yield of(y, quantized_bytes(width), writes=True)
    elif kind == Kind.NORM:
        # Each thread reads the whole of a row whose columns it shares.
        for place in (x, words[5]) if words[5] else (x,):
            yield of(place, FLOAT * width, whole=bool(shared))
        for place in (y, words[6]) if words[5] else (y,):
            yield of(place, FLOAT * width, writes=True)
    elif kind == Kind.SCALE:
        yield of(x, FLOAT * width)
        yield of(y, FLOAT * width, writes=True)
    elif kind == Kind.BIAS:
        yield of(x, FLOAT * width, writes=True)
    elif kind == Kind.GATE:
        yield of(x, FLOAT * width)
        yield of(words[7], FLOAT * width)
        yield of(y, FLOAT * width, writes=True)
    elif kind == Kind.KEEP:
        yield Access(x, x + ROWS * FLOAT * width, ALL)
        yield of(y, FLOAT * width, writes=True)
    elif kind == Kind.LOOK_UP:
        yield of(y, FLOAT * width, writes=True)


def attention(words: Sequence[int], rows: int, q: int, row: int) -> Iterator[Access]:
    """The queries of an attention operation; threads share their heads."""
    yield Access(q, q + (rows - 1) * row + FLOAT * words[4] * words[5], ("parts", words[4], q, row))
