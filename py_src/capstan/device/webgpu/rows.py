"""Makes this device's decoders of any number of rows, and runs operations on all rows of a decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from ...errors import OptionError
from ...memory import Loan
from ..separate_rows import SeparateRows
from .decoder import WebGpuDecoder
from .gpu_waits import to_its_end
from .joint_rows import JointRows

__all__ = ["WebGpuRows", "give_scratch", "require_movable", "sequences_of", "take_over"]

WebGpuRows = WebGpuDecoder | JointRows | SeparateRows[WebGpuDecoder]


def sequences_of(rows: WebGpuRows) -> Sequence[WebGpuDecoder]:
    """The inner decoders of one sequence, which own the tapes' scratch: one per row, or the one that runs prompts."""
    if isinstance(rows, SeparateRows):
        return rows.decoders
    return [rows.sequence if isinstance(rows, JointRows) else rows]


async def give_scratch(rows: WebGpuRows, loan: Loan | None) -> None:
    """Have the tapes use the borrowed buffers, largest first, or allocate their own scratch; submitted work keeps its
    buffers. A cancelled wait continues until the tapes are bound, since buffers must not be released earlier. Raises
    OutOfMemoryError; in that case the tapes keep their scratch.
    """
    await to_its_end(asyncio.ensure_future(_give_scratch(rows, loan)))


async def _give_scratch(rows: WebGpuRows, loan: Loan | None) -> None:
    await rows.rest()
    old, new = (None if borrowed is None else tuple(borrowed.spans.values()) for borrowed in (rows.borrowed, loan))
    async with AsyncExitStack() as undo:
        for one in sequences_of(rows):
            await one.rest()
            await one.scratch.give(new)
            undo.push_async_callback(one.scratch.give, old)
        undo.pop_all()
    borrowed, rows.borrowed = rows.borrowed, loan
    if borrowed is not None:
        borrowed.end()


def require_movable(rows: WebGpuRows) -> None:
    """Raise OptionError for rows over the user's buffers: another rank needs other buffers."""
    ones = [rows] if isinstance(rows, JointRows) else sequences_of(rows)
    if not all(one.reusable for one in ones):
        raise OptionError(
            "a generator with pools cannot change its adapter's rank after its first token; set the adapter before "
            "it, or leave the pools out"
        )


def take_over(rows: WebGpuRows, others: WebGpuRows) -> None:
    """Copy other rows of the same number and capacity: caches, lengths and logits."""
    if isinstance(rows, JointRows) and isinstance(others, JointRows):
        rows.take_over(others)
    elif isinstance(rows, JointRows):
        for row, one in enumerate(sequences_of(others)):
            rows.row(row).take(one)
    elif isinstance(others, JointRows):
        for row, one in enumerate(sequences_of(rows)):
            others.row(row).give(one)
    else:
        for one, other in zip(sequences_of(rows), sequences_of(others), strict=True):
            one.copy_from(other)
