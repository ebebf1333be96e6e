"""Represents one row of JointRows: its part of the buffers, and its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..cache_rows import RowSource
from ..carried_tensor import CarriedTensor
from ..shortlist import ScoredToken
from .cache_spans import CacheSpans
from .decoder import WebGpuDecoder
from .row_buffers import RowBuffers
from .row_sampler import RowSampler
from .sampled_rows import SampledRow
from .sliding import reached

if TYPE_CHECKING:
    from ..cache_rows import PictureSpan
    from ..device_interface import BoundSpan

__all__ = ["JointRow"]


class JointRow(SampledRow):
    """A row of JointRows; row_interface.DecoderRow documents the methods.

    A decoder of one sequence runs the prompts; its KV cache and logits are then copied to the spans of the row.
    """

    def __init__(self, number: int, one: WebGpuDecoder, buffers: RowBuffers, sampler: RowSampler) -> None:
        super().__init__(sampler, buffers.part("logits", number), buffers.require_open, number)
        self._one = one
        self._buffers = buffers
        self._followed: tuple[Sequence[int], int, int] | None = None
        """The arguments of the last `follow`."""

    def begin(self, length: int) -> None:
        """Continue after `length` positions; the next pick goes to the ring index that all rows share."""
        self._buffers.lengths[self.number] = length
        self._buffers.set_length(self.number, length)

    def go_on(self, last: int, length: int) -> None:
        """Continue after the token `last`."""
        self._buffers.set_input(self.number, last)
        self._buffers.unstepped.discard(self.number)
        self.begin(length)

    def take(self, one: WebGpuDecoder) -> None:
        """Copy another decoder's sequence, which this row continues."""
        self._buffers.require_open()
        self._buffers.from_one(self.number, one.buffers)
        self.begin(one.runs.length)
        self._buffers.unstepped.add(self.number)

    def give(self, one: WebGpuDecoder) -> None:
        """Copy the row's sequence to a decoder of one sequence, which continues it."""
        self._buffers.require_open()
        self._buffers.to_one(self.number, one.buffers, [*self._buffers.carried, "logits"])
        one.runs.begin(self._buffers.lengths[self.number])

    def reachable(self, length: int) -> int:
        return reached(self._buffers.window(self.number), length)

    def caches(self) -> CacheSpans | None:
        buffers = self._buffers
        buffers.require_open()
        spans = tuple(buffers.part(name, self.number) for name in buffers.caches)
        window = buffers.window(self.number) or self._one.buffers.sliding
        owner = f"{buffers.owner}, kept"
        return CacheSpans(
            buffers.device, buffers.about, spans, buffers.capacity, owner, window=window, upload=self._one.upload
        )

    def adopt(self, source: RowSource, length: int) -> None:
        target = self.caches()
        assert target is not None
        source.copy_to(target, length)
        # Until this row runs, steps of other rows write for it, too, after the copied positions.
        self.begin(length + 1)

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        self._buffers.require_open()
        self._buffers.hear(self.number, heard)

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        # With pictures all rows have the same prompt.
        self._buffers.require_open()
        self._one.see(features, places, pictures)

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        buffers = self._buffers
        buffers.require_open()
        names = buffers.carried if past else buffers.crosses
        if names:
            buffers.to_one(self.number, self._one.buffers, names)
        await self._one.prefill(ids, past)
        buffers.require_open()
        buffers.from_one(self.number, self._one.buffers)
        self.go_on(ids[-1], past + len(ids))

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        self.give(self._one)
        found = await self._one.score(tokens, past)
        self.take(self._one)
        return found

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        self._followed = (tokens, prompt, padding)
        self.follow_again()

    def follow_again(self) -> None:
        """Have the sampler follow the sequence under other options."""
        if self._followed is not None:
            self._sampler.follow(*self._followed, self.number)

    async def carried(self, name: str) -> CarriedTensor:
        self.give(self._one)
        return await self._one.carried(name)
