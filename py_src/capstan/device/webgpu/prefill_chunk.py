"""Chooses the number of prompt tokens in one run of onnxruntime-web's prefill session, by the memory of a run."""

from __future__ import annotations

from ...graph import Activations

__all__ = ["SCRATCH_BYTES", "prefill_chunk"]

LONGEST = {False: 2048, True: 64}
"""Tokens, by whether the adapter is software. onnxruntime-web's attention has a workgroup for each head and 64 tokens
of the run, each of which reads the whole sequence, so that short runs leave a GPU idle. A 4000-token prompt of a
Llama-1B shape (int4, float16) on an H200: 342 ms in runs of 512, 280 in runs of 1024, 275 in runs of 2048, 265 in one
run, with 52, 115, 199 and 494 MB of scratch. On a software adapter even a short run is slow.
"""

SHORTEST = 64
"""Tokens; shorter runs would leave most of a tile of onnxruntime-web's matrix products idle."""

SCRATCH_BYTES = 256 << 20
"""The largest estimate of one run's activations; longer runs are shortened to it. The allocation was 1.4 to 1.7 times
the estimate, since onnxruntime-web keeps freed buffers in size classes.
"""


def prefill_chunk(activations: Activations, context_length: int, *, software: bool) -> int:
    """Most tokens of a run: the number for the adapter's kind, halved until the estimated activations of a run over a
    full context are at most SCRATCH_BYTES.
    """
    chunk = LONGEST[software]
    while chunk > SHORTEST and activations.peak(1, min(chunk, context_length), context_length) > SCRATCH_BYTES:
        chunk //= 2
    return chunk
