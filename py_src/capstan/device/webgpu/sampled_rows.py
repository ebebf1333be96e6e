"""Holds the common part of decoders on WebGPU, of one or several rows: logits, masks and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...memory import DeviceSpan, Loan
from ..casts import ELEMENT_BYTES
from ..row_interface import ONE, Counters
from ..shortlist import Shortlist
from .row_logits import RowLogits
from .row_sampler import RowSampler

__all__ = ["SampledRow", "SampledRows"]


class SampledRow:
    """A row of a sampler; row_interface.DecoderRow documents the methods."""

    def __init__(
        self, sampler: RowSampler, logits: DeviceSpan, require_open: Callable[[], None], number: int = 0
    ) -> None:
        about, buffers = sampler.buffers.about, sampler.buffers
        self.number = number
        self._sampler = sampler
        self._require_open = require_open
        self._logits = RowLogits(buffers.device, logits, about.logits_dtype, about.vocab_size, buffers.owner)

    def allow(self, mask: bytes) -> None:
        self._require_open()
        self._sampler.allow(mask, self.number)

    def follow_grammar(self, position: Sequence[int]) -> None:
        self._require_open()
        self._sampler.follow_grammar(position, self.number)

    async def logits(self) -> memoryview[float]:
        self._require_open()
        return await self._logits.read()

    def set_logits(self, values: memoryview[float]) -> None:
        self._require_open()
        self._logits.write(values)

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        self._require_open()
        self._logits.edit(edits)


class SampledRows:
    """All rows that one step advances; row_interface.RowDecoder documents the methods."""

    follows_grammars = True

    def __init__(self, sampler: RowSampler, logits: Sequence[DeviceSpan], require_open: Callable[[], None]) -> None:
        self._engine = sampler.engine
        self._sampler = sampler
        self._about = sampler.buffers.about
        self._device = sampler.buffers.device
        self._spans = logits
        """The logits of each row."""
        self._require_open = require_open
        self._steps = 0
        self.rows = len(logits)
        self.capacity = sampler.buffers.capacity
        self.usual_burst = 1
        self.borrowed: Loan | None = None
        """The hold on borrowed buffers that the tapes use as scratch; `destroy` releases it."""

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        self._require_open()
        about, first = self._about, min(rows)
        part = self._spans[first]
        start = part.offset // ELEMENT_BYTES[about.logits_dtype]
        numbers = await self._engine.shortlist(
            part.buffer.handle, about.logits_dtype, about.vocab_size, count, start, max(rows) - first + 1
        )
        size = 1 + 2 * count
        return [Shortlist.read(numbers[(row - first) * size : (row - first + 1) * size]) for row in rows]

    def counters(self) -> Counters:
        return {"steps": self._steps, **self._engine.counters()}
