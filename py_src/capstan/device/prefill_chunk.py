"""How many prompt tokens one run of the prefill session takes."""

from __future__ import annotations

from ..graph import Activations

__all__ = ["SCRATCH_BYTES", "prefill_chunk"]

LONGEST = {False: 2048, True: 64}
"""Tokens, by whether the adapter is software. Long runs keep a GPU busy: attention has one workgroup for each head and
64 tokens of the run, each of which goes over the whole sequence."""

SHORTEST = 64
"""Tokens; shorter runs would leave most of a tile of onnxruntime-web's matrix products idle."""

SCRATCH_BYTES = 256 << 20
"""Most of the activations of one run, where a shorter run can help it."""


def prefill_chunk(activations: Activations, context_length: int, *, software: bool) -> int:
    """Most tokens of a run: as many as the adapter's kind can use, halved until the activations of a run over a full
    context are estimated at no more than SCRATCH_BYTES."""
    chunk = LONGEST[software]
    while chunk > SHORTEST and activations.peak(1, min(chunk, context_length), context_length) > SCRATCH_BYTES:
        chunk //= 2
    return chunk
