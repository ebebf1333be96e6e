"""Manages the caches of one sequence on WebGPU, or a copy of their first positions. The GPU copies them head by
head.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ...graph import CachePair, GraphDescription
from ...memory import BufferRequest, DeviceBuffer, DeviceSpan, StridedCopy
from ..cache_rows import SavedRows
from ..device_interface import DeviceInterface
from ..element_types import byte_count
from .sliding import SlidingWindow

__all__ = ["CacheSpans"]


@dataclass(frozen=True)
class CacheSpans:
    """See cache_rows.CacheRows for what each method promises."""

    device: DeviceInterface
    about: GraphDescription
    spans: tuple[DeviceSpan, ...]
    """In the order of `about.cache`."""
    positions: int
    """The positions of each head."""
    owner: str
    owned: tuple[DeviceBuffer, ...] = ()
    """The buffers of a copy."""
    window: SlidingWindow | None = None
    """The sliding caches of a sequence."""
    kept_from: int = 0
    """The first position in the sliding caches of a copy."""

    def size(self, length: int) -> int:
        return sum(self._sizes(length, self.base))

    def continues(self, target: CacheSpans, length: int) -> bool:
        return target.takes(self.base, length)

    def holds(self, length: int) -> bool:
        sliding = self.about.sliding
        return sliding is None or sliding.holds(self.base, length)

    async def kept(self, length: int) -> CacheSpans:
        requests = [
            BufferRequest(f"kept {pair.past}", size, "persistent")
            for pair, size in zip(self.about.cache, self._sizes(length, self.base), strict=True)
        ]
        made = tuple(await self.device.allocate_all(requests, self.owner))
        spans = tuple(buffer.span() for buffer in made)
        kept = CacheSpans(self.device, self.about, spans, length, self.owner, made, kept_from=self.base)
        with ExitStack() as undo:
            undo.callback(kept.free)
            self._copy(kept, length, self.base)
            undo.pop_all()
        return kept

    def copy_to(self, target: CacheSpans, length: int) -> None:
        self._copy(target, length, target._begin(self.base, length))

    def free(self) -> None:
        for buffer in self.owned:
            buffer.close()

    async def read(self, length: int) -> SavedRows:
        kept = await self.kept(length)
        try:
            caches = [bytearray(span.length) for span in kept.spans]
            await self.device.copy_all_to_cpu(list(zip(kept.spans, caches, strict=True)))
        finally:
            kept.free()
        return SavedRows([memoryview(each) for each in caches], kept.base)

    def takes(self, base: int, length: int) -> bool:
        sliding, window = self.about.sliding, self.window
        if sliding is None or base == 0:
            return base == 0
        return sliding.holds(base, length) and window is not None and window.slides

    def write(self, rows: SavedRows, length: int) -> None:
        base = self._begin(rows.base, length)
        for pair, span, data in zip(self.about.cache, self.spans, rows.caches, strict=True):
            position = byte_count(self.about.cache_dtype, (pair.head_size,))
            first, held = (base, rows.base) if self._slides(pair) else (0, 0)
            size, given = position * (length - first), position * (length - held)
            for head in range(pair.heads):
                end = (head + 1) * given
                place = span.sub(head * position * self.room(pair), size)
                self.device.copy_cpu_to_device(place, data[end - size : end])

    @property
    def base(self) -> int:
        """The first position that sliding caches hold."""
        return self.kept_from if self.window is None else self.window.base

    def room(self, pair: CachePair) -> int:
        """The capacity of a cache in positions."""
        if not self._slides(pair):
            return self.positions
        return self.positions - self.kept_from if self.window is None else self.window.room

    def _begin(self, base: int, length: int) -> int:
        """Let sliding caches begin at `base`, or later if they have no room for all positions up to `length`; returns
        the first position.
        """
        window = self.window
        if window is None:
            return base
        if length - base >= window.room:
            base = max(base, window.kept_from(length, 1))
        # The positions of the caches count from their base.
        window.rebase(base)
        return base

    def _copy(self, target: CacheSpans, length: int, base: int) -> None:
        """Copy the first `length` positions (of sliding caches those from `base` on) to the same positions of the
        target.
        """
        copies = []
        for pair, source, destination in zip(self.about.cache, self.spans, target.spans, strict=True):
            position = byte_count(self.about.cache_dtype, (pair.head_size,))
            strides = position * self.room(pair), position * target.room(pair)
            first = base if self._slides(pair) else 0
            skipped = position * (first - self.base) if self._slides(pair) else 0
            part = source.sub(skipped, source.length - skipped)
            copies.append(
                StridedCopy(part, strides[0], destination, strides[1], position * (length - first), pair.heads)
            )
        self.device.copy_strided(copies)

    def _slides(self, pair: CachePair) -> bool:
        return self.about.sliding is not None and pair.past in self.about.sliding.pasts

    def _sizes(self, length: int, base: int) -> list[int]:
        """Bytes of each cache with `length` positions (of sliding caches those from `base` on)."""
        return [
            byte_count(self.about.cache_dtype, pair.dims(1, length - base if self._slides(pair) else length))
            for pair in self.about.cache
        ]
