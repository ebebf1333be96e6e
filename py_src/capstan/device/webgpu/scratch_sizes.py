"""Keeps the sizes of the scratch memory that a model's sequences allocated, for queries of memory requirements."""

from __future__ import annotations

from collections.abc import Sequence

from ...memory import PoolSize, Rows
from .decoder import WebGpuDecoder
from .loaded_model import Loaded
from .tapes.decode_step import DecodeStep
from .tapes.tape_scratch import TapeScratch, largest

__all__ = ["ScratchSizes"]


class ScratchSizes:
    """The scratch of one model, in bytes, as far as it was allocated."""

    def __init__(self, loaded: Loaded, capture: str) -> None:
        """`capture` is the requested way to run decode steps."""
        self._loaded = loaded
        self._capture = capture
        self._allocated: dict[tuple[int, int], int] = {}
        """By rows and capacity: of a sequence, and of the additional buffers of joint rows; (0, 0) is the prefill
        session.
        """
        self._between: dict[tuple[int, int], Sequence[int]] = {}
        """Bytes of the buffers between the kernels of tapes, in the same way."""
        self.untaped: dict[int, str] = {}
        """The reason why steps of a capacity have no tape."""
        self._longest = 0
        """Tokens of the longest prefill run."""

    async def note_step(self, step: DecodeStep, capacity: int, scratch: TapeScratch) -> None:
        """Manage the scratch of a step's tape, or note the reason why there is no tape."""
        if step.tape:
            await scratch.add(step.tape, "the decode step")
        elif not step.unrecorded:
            self.untaped[capacity] = step.note or f"capture is {self._capture!r}"

    def note(self, decoder: WebGpuDecoder) -> None:
        """Note what onnxruntime-web allocated for the prefill session and for a sequence of this capacity."""
        if decoder.scratch.given is not None:
            return
        ledger = self._loaded.engine.ledger()
        of = {entry["owner"]: entry["bytes"] for entry in ledger if entry["category"] == "scratch"}
        self._longest = max(self._longest, decoder.runs.longest)
        self._allocated[0, 0] = of.get(self._loaded.owner, 0)
        self._allocated[1, decoder.capacity] = of.get(decoder.owner, 0)

    def note_between(self, capacity: int, rows: int, sizes: Sequence[int]) -> None:
        """Note the scratch that a tape needs between its kernels."""
        self._between[rows, capacity] = largest(self._between.get((rows, capacity), ()), sizes)

    def measured(self, rows: int, capacity: int, kind: Rows) -> PoolSize | None:
        """The allocated scratch; at least the estimate for a chunk until a run was that long."""
        each, chunk = self._allocated.get((1, capacity)), min(self._loaded.chunk, capacity)
        if each is None:
            return None
        # The joint rows' step allocates scratch only for its kernels, so the sizes of these buffers are its scratch.
        together = sum(self._between.get((rows, capacity), ())) if kind == "joint" else 0
        found = self._allocated[0, 0] + (together + each if kind == "joint" else rows * each)
        known = rows == 1 or (kind == "joint" and (rows, capacity) in self._between)
        if self._longest >= chunk:
            return PoolSize(found, exact=known)
        return PoolSize(max(found, self._loaded.graphs.activations.peak(1, chunk, capacity)), exact=False)

    def of_tapes(self, rows: int, capacity: int, kind: Rows) -> Sequence[int] | str:
        """Bytes of each scratch buffer of the tapes made so far, or the reason why these are unknown."""
        if self._capture != "tape" or capacity in self.untaped:
            reason = self.untaped.get(capacity, f"capture is {self._capture!r}")
            return f"only the kernels of a tape take given scratch, onnxruntime-web allocates its own, and {reason}"
        wanted = [(1, capacity), (rows, capacity)] if kind == "joint" else [(1, capacity)]
        if any(key not in self._between for key in wanted):
            return f"not yet known: no step of {capacity} positions was taped; prepare a generator, then query again"
        found: Sequence[int] = ()
        for key in wanted:
            found = largest(found, self._between[key])
        return found
