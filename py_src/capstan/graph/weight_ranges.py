"""Makes separate weights of rows or columns of a weight, from parts of the same data file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import lcm

from .parts import Beside, Narrow, Part, Turn, Unpack
from .weight_inputs import DTYPES, WeightEntry

__all__ = ["RANGE_STEP", "NotInRangesError", "bound_bytes", "columns_of", "ranges_of", "rows_of", "step_of"]

RANGE_STEP = 32
"""All ranges but the last have a multiple of this number of rows or columns, so that their bytes are whole words."""
WORD = 4


class NotInRangesError(Exception):
    """Raised for a weight that stays whole; the message is the reason."""


def bound_bytes(entry: WeightEntry) -> int:
    """The bytes of a weight that a kernel binds: its buffer, or the file's bytes that are rearranged into it."""
    return max(entry.length, sum(piece.length for piece in entry.pieces if piece.change is not None))


def step_of(entries: Iterable[WeightEntry]) -> int:
    """The step of ranges: each range of these weights has a multiple of this number of rows, so that rows of an
    attention head whose halves change places stay together.
    """
    parts = (piece.change for entry in entries for piece in entry.pieces)
    return lcm(RANGE_STEP, *(each.halves for each in parts if isinstance(each, Unpack) and each.halves))


def ranges_of(total: int, row: int, largest: int, step: int = RANGE_STEP) -> list[tuple[int, int]]:
    """(first, count) of the fewest ranges of `total` rows of `row` bytes each, none of which takes more than `largest`
    bytes; all but the last have the same size. Raises NotInRangesError.
    """
    most = largest // row // step
    if not most:
        raise NotInRangesError(f"{step} of its rows take {step * row} bytes, more than one binding")
    steps = -(-total // step)
    size = -(-steps // -(-steps // most)) * step
    return [(first, min(size, total - first)) for first in range(0, total, size)]


def rows_of(entry: WeightEntry, total: int, first: int, count: int) -> tuple[Part, ...]:
    """The parts of `count` of the `total` rows of a weight's buffer, from row `first` on. Raises NotInRangesError."""
    if entry.length % total:
        raise NotInRangesError("some rows start within a byte")
    row = entry.length // total
    found: list[Part] = []
    at = 0
    for piece in entry.pieces:
        if piece.made % row:
            raise NotInRangesError("some rows come from several parts of the file")
        rows = piece.made // row
        begin, end = max(first - at, 0), min(first + count - at, rows)
        if begin < end:
            found.append(some_rows(piece, rows, begin, end - begin))
        at += rows
    return tuple(found)


def some_rows(piece: Part, rows: int, first: int, count: int) -> Part:
    """`count` of the rows that a part has in the buffer, from row `first`."""
    change = piece.change
    share = piece.length // rows
    offset, length = piece.offset + first * share, count * share
    if change is None:
        return Part(offset, length)
    if isinstance(change, Narrow) and length % (2 * WORD) == 0:
        return Part(offset, length, change)
    if isinstance(change, Turn) and change.columns == 1 and change.rows % rows == 0 and share * rows == piece.length:
        return Part(offset, length, replace(change, rows=change.rows // rows * count))
    if isinstance(change, Unpack) and change.rows == rows and not change.stride and not change.between:
        return unpacked_rows(piece, change, first, count)
    if isinstance(change, Turn):
        raise NotInRangesError("its rows are columns in the file")
    raise NotInRangesError(f"its rows are not one after another in the file ({change.kind})")


def unpacked_rows(piece: Part, change: Unpack, first: int, count: int) -> Part:
    """`count` of the rows of a tensor of a GGUF file, from row `first`."""
    assert not change.halves or (first % change.halves, count % change.halves) == (0, 0), "see step_of"
    share = piece.length // change.rows
    return Part(piece.offset + first * share, count * share, replace(change, rows=count))


def columns_of(entry: WeightEntry, first: int, count: int) -> tuple[Part, ...]:
    """The parts of `count` columns of a matrix [rows, columns] from column `first` on. Raises NotInRangesError."""
    rows, columns = entry.dims
    bits = DTYPES[entry.onnx_type][1]
    [*pieces] = entry.pieces
    change = pieces[0].change
    if change is None and len(pieces) == 1:
        return plain_columns([(pieces[0].offset, columns * bits // 8)], rows, first * bits, count * bits)
    if all(isinstance(piece.change, Beside) for piece in pieces):
        matrices = [(piece.offset, piece.change.row) for piece in pieces if isinstance(piece.change, Beside)]
        return plain_columns(matrices, rows, first * bits, count * bits)
    if isinstance(change, Turn) and (change.columns, len(pieces)) == (rows, 1):
        share = pieces[0].length // change.rows
        return (Part(pieces[0].offset + first * share, count * share, replace(change, rows=count)),)
    if all(isinstance(piece.change, Unpack) and piece.change.stride for piece in pieces):
        return tuple(columns_unpacked(pieces, first, count))
    raise NotInRangesError("its columns come from several parts of the file")


def plain_columns(matrices: list[tuple[int, int]], rows: int, first: int, count: int) -> tuple[Part, ...]:
    """Bits `first` to `first + count` of each row of matrices side by side, given the offset in the file and the bytes
    of a row of each: a part for each row and matrix.
    """
    if first % (8 * WORD) or count % (8 * WORD):
        raise NotInRangesError("the rows of its last columns are not whole words")
    begin, end = first // 8, (first + count) // 8
    found = []
    for row in range(rows):
        at = 0
        for offset, size in matrices:
            start, stop = max(begin - at, 0), min(end - at, size)
            if start < stop:
                found.append(Part(offset + row * size + start, stop - start))
            at += size
    return tuple(found)


def columns_unpacked(pieces: list[Part], first: int, count: int) -> Iterator[Part]:
    """The parts of `count` columns, from column `first`, for tensors of a GGUF file, whose rows are columns of the
    buffer.
    """
    at = 0
    for piece in pieces:
        assert isinstance(piece.change, Unpack)
        begin, end = max(first - at, 0), min(first + count - at, piece.change.rows)
        if begin < end:
            if (end - begin) * piece.change.bits % (8 * WORD) and end - begin < count:
                raise NotInRangesError("columns of several tensors are not whole words")
            yield unpacked_rows(piece, replace(piece.change, stride=count), begin, end - begin)
        at += piece.change.rows
