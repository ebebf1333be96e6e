"""Prompts of several rows that a device runs together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

__all__ = ["PackedRows", "RowPrompts"]

RowPrompts = Mapping[int, tuple[Sequence[int], int]]
"""By row: ids, and how many positions there are before them."""


@runtime_checkable
class PackedRows(Protocol):
    """A RowDecoder that runs prompts of several rows together."""

    async def prefill_together(self, prompts: RowPrompts) -> Collection[int]:
        """Run some of these prompts, each with the result of `prefill`; the rows whose prompts were run. Other rows
        keep their caches, and have their logits computed anew from their last token. Called while no burst is under
        way."""
