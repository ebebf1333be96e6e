"""Manages the caches of one sequence on WebGPU, or a copy of their first positions. The GPU copies them head by
head.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ...graph import CachePair, GraphDescription, fields_of
from ...host.storage_interface import Sink
from ...memory import BufferRequest, DeviceBuffer, DeviceSpan, StridedCopy
from ..cache_rows import SavedRows
from ..device_interface import DeviceInterface
from ..element_types import byte_count
from .gpu_engine import WeightPiece
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
    upload: Callable[[Sequence[WeightPiece]], Sink] | None = None
    """Makes a sink that fills buffers with the bytes of a file; a copy is never filled."""

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

    async def read(self, length: int) -> AsyncGenerator[bytes | bytearray]:
        sizes = self._sizes(length, self.base)
        [room] = await self.device.allocate_all([BufferRequest("saved rows", max(sizes), "persistent")], self.owner)
        try:
            for pair, source, size in zip(self.about.cache, self.spans, sizes, strict=True):
                rows, dense = bytearray(size), size // pair.heads
                stride = self._position(pair) * self.room(pair)
                self.device.copy_strided([StridedCopy(source, stride, room.span(), dense, dense, pair.heads)])
                await self.device.copy_all_to_cpu([(room.span(0, size), rows)])
                yield rows
        finally:
            room.close()

    def takes(self, base: int, length: int) -> bool:
        sliding, window = self.about.sliding, self.window
        if sliding is None or base == 0:
            return base == 0
        return sliding.holds(base, length) and window is not None and window.slides

    async def load(self, rows: SavedRows, length: int) -> None:
        places = self._places(rows, length)
        if rows.bytes.in_file and self.upload is not None:
            # JavaScript moves them from the file to the GPU.
            pieces = [self._piece(rows, place, start) for spans in places for place, start in spans]
            await rows.bytes.pour(self.upload(pieces))
            return
        at = 0
        caches = rows.each()
        for spans, size in zip(places, rows.sizes, strict=True):
            data = await anext(caches)
            for place, start in spans:
                self.device.copy_cpu_to_device(place, data[start - at : start - at + place.length])
            at += size

    @staticmethod
    def _piece(rows: SavedRows, place: DeviceSpan, start: int) -> WeightPiece:
        change = None if rows.narrow is None else fields_of(rows.narrow.change(place.length))
        return WeightPiece(place.buffer.handle, rows.stored(start), rows.stored(place.length), place.offset, change)

    def _places(self, rows: SavedRows, length: int) -> list[list[tuple[DeviceSpan, int]]]:
        """For each cache, the spans of its heads and the places of their bytes among those of all caches."""
        base, at = self._begin(rows.base, length), 0
        places: list[list[tuple[DeviceSpan, int]]] = []
        for pair, span, size in zip(self.about.cache, self.spans, rows.sizes, strict=True):
            position, given = self._position(pair), size // pair.heads
            skipped = position * (base - rows.base) if self._slides(pair) else 0
            places.append([])
            for head in range(pair.heads):
                place = span.sub(head * position * self.room(pair), given - skipped)
                places[-1].append((place, at + head * given + skipped))
            at += size
        return places

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
            position = self._position(pair)
            strides = position * self.room(pair), position * target.room(pair)
            first = base if self._slides(pair) else 0
            skipped = position * (first - self.base) if self._slides(pair) else 0
            part = source.sub(skipped, source.length - skipped)
            copies.append(
                StridedCopy(part, strides[0], destination, strides[1], position * (length - first), pair.heads)
            )
        self.device.copy_strided(copies)

    def _position(self, pair: CachePair) -> int:
        """Bytes of one position of a head."""
        return byte_count(self.about.cache_dtype, (pair.head_size,))

    def _slides(self, pair: CachePair) -> bool:
        return self.about.sliding is not None and pair.past in self.about.sliding.pasts

    def _sizes(self, length: int, base: int) -> list[int]:
        """Bytes of each cache with `length` positions (of sliding caches those from `base` on)."""
        return [
            byte_count(self.about.cache_dtype, pair.dims(1, length - base if self._slides(pair) else length))
            for pair in self.about.cache
        ]
