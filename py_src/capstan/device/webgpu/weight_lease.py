"""Keeps the weights of a data file on the device for as long as a model needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...graph import Part, WeightEntry, fields_of
from ...host.storage_interface import WeightData
from ...weights.shared import Lease, SharedWeights, Span
from .gpu_engine import GpuBuffers, WeightPiece

__all__ = ["lease", "pieces"]


async def lease(
    engine: GpuBuffers,
    shared: SharedWeights,
    file: WeightData,
    entries: Sequence[WeightEntry],
    owner: str,
    progress: Callable[[int, int], None],
    ahead: bool = True,
) -> Lease:
    """The buffers of a data file's weights, loaded now unless they are already on the device. With `ahead` the next
    page may begin this upload while Python starts.
    """

    async def load(missing: list[tuple[Span, int]]) -> None:
        sink = engine.upload_weights([piece for span, buffer in missing for piece in pieces(buffer, span.parts)])
        await file.load(sink, end, progress)
        if not ahead:
            return
        placed = [piece for place, (span, _) in enumerate(missing) for piece in pieces(place, span.parts)]
        await file.note_upload(owner, [span.request for span, _ in missing], placed)

    end = max(entry.end for entry in entries)
    spans = [Span(entry.name, entry.pieces) for entry in entries]
    known_as = file.content
    try:
        file.require(end)
        held = await shared.acquire(known_as, spans, owner, load)
    finally:
        file.close()
    if known_as and file.content:
        shared.also(known_as, file.content)
    return held


def pieces(buffer: int, parts: Sequence[Part]) -> Iterator[WeightPiece]:
    """The pieces that fill a weight's buffer, one part after another, or row by row."""
    at = 0
    for part in parts:
        yield WeightPiece(buffer, part.offset, part.length, at, fields_of(part.change))
        at += part.step
