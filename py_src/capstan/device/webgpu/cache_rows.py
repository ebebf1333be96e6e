"""The caches of one sequence on WebGPU, or a copy of their first positions: copied head by head, on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import GraphDescription
from ...memory import BufferRequest, DeviceBuffer, DeviceSpan, StridedCopy
from ..element_types import byte_count
from ..interface import DeviceInterface

__all__ = ["CacheSpans"]


@dataclass(frozen=True)
class CacheSpans:
    """See cache_rows.CacheRows for what each method promises."""

    device: DeviceInterface
    about: GraphDescription
    spans: tuple[DeviceSpan, ...]
    """In the order of `about.cache`."""
    positions: int
    """Room of each head, in positions."""
    owner: str
    owned: tuple[DeviceBuffer, ...] = ()
    """The buffers of a copy."""

    def size(self, length: int) -> int:
        return sum(self._sizes(length))

    async def kept(self, length: int) -> CacheSpans:
        requests = [
            BufferRequest(f"kept {pair.past}", size, "persistent")
            for pair, size in zip(self.about.cache, self._sizes(length), strict=True)
        ]
        made = tuple(await self.device.allocate_all(requests, self.owner))
        spans = tuple(buffer.span() for buffer in made)
        kept = CacheSpans(self.device, self.about, spans, length, self.owner, made)
        try:
            self.copy_to(kept, length)
        except BaseException:
            kept.free()
            raise
        return kept

    def copy_to(self, target: CacheSpans, length: int) -> None:
        copies = []
        for pair, source, destination in zip(self.about.cache, self.spans, target.spans, strict=True):
            position = byte_count(self.about.cache_dtype, (pair.head_size,))
            strides = position * self.positions, position * target.positions
            copies.append(StridedCopy(source, strides[0], destination, strides[1], position * length, pair.heads))
        self.device.copy_strided(copies)

    def free(self) -> None:
        for buffer in self.owned:
            buffer.close()

    def _sizes(self, length: int) -> list[int]:
        """Bytes of each cache with `length` positions."""
        return [byte_count(self.about.cache_dtype, pair.dims(1, length)) for pair in self.about.cache]
