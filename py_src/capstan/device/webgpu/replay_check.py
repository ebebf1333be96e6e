"""Compares what a tape does with what an eager run does: the logits, every byte of the KV cache, and other states."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ...errors import TapeCheckError
from ...graph import GraphDescription
from ...memory import BufferRequest
from .engine import GpuBuffers
from .sequence_buffers import SequenceBuffers

__all__ = ["TOLERANCE", "Spread", "check_replay"]

TOLERANCE = {"float32": 2e-4, "float16": 2e-2}
"""Largest difference between a replayed and an eager run, relative to the largest value, in logits and KV cache.

Both compute the same sums, in another order where kernels are ours or attention is split differently, which is worth a
few units in the last place."""


@dataclass(frozen=True)
class Spread:
    """How far caches may be apart where single elements say little: rounding to fewer bits tips the attention of a
    position now and then, of which thousands are compared."""

    mean: float
    """Root of the mean square of the differences, relative to that of the values."""
    largest: float
    """Difference of any element, relative to the largest value."""


async def check_replay(
    engine: GpuBuffers,
    buffers: SequenceBuffers,
    about: GraphDescription,
    what: str,
    replay: Callable[[], Awaitable[None]],
    eager: Callable[[], Awaitable[None]],
    tolerance: Mapping[str, float] = TOLERANCE,
    spread: Spread | None = None,
) -> None:
    """Do a step or run, `what`, by `replay` and by `eager`, from inputs that are set and that both leave as they are,
    all but states, which are put back between the two. With a `spread` it holds for the caches, and the tolerance for
    the logits alone. If a graph computes in float16 and casts to float32, float16's tolerance holds.

    Raises TapeCheckError with the largest difference and the tolerance. Logits are full of NaN before each.
    """
    watched = [(about.logits, buffers.spans["logits"], about.logits_dtype)]
    watched += [(pair.present, buffers.spans[f"kv {pair.past}"], about.cache_dtype) for pair in about.cache]
    watched += [(state.present, buffers.spans[state.past], state.dtype) for state in about.states]
    states = buffers.states
    requests = [BufferRequest("copy", span.length, "kernels") for span in (*(span for _, span, _ in watched), *states)]
    allocated = await buffers.device.allocate_all(requests, "tape check")
    copies, before = allocated[: len(watched)], allocated[len(watched) :]
    try:
        engine.fill(buffers.logits, 0xFF)
        buffers.device.copy_tensors([(span, copy.span()) for span, copy in zip(states, before, strict=True)])
        await replay()
        buffers.device.copy_tensors([(span, copy.span()) for (_, span, _), copy in zip(watched, copies, strict=True)])
        engine.fill(buffers.logits, 0xFF)
        buffers.device.copy_tensors([(copy.span(), span) for span, copy in zip(states, before, strict=True)])
        await eager()
        buffers.settle_states()
        differences = await engine.compare(
            [
                (copy.handle, span.buffer.handle, span.length, dtype)
                for (_, span, dtype), copy in zip(watched, copies, strict=True)
            ]
        )
    finally:
        for copy in allocated:
            copy.close()
    for (name, _, dtype), found in zip(watched, differences, strict=True):
        computed = "float16" if about.needs_f16 else dtype
        share = tolerance[computed] if spread is None or name == about.logits else spread.largest
        limit = share * max(1.0, found.max_magnitude)
        if found.unlike or found.max_difference > limit:
            raise TapeCheckError(
                f"a replayed {what} differs from an eager one in {name} by {found.max_difference:g} "
                f"({found.unlike} elements finite in only one), at most {limit:g} is allowed"
            )
        if spread is not None and name != about.logits and found.relative > spread.mean:
            raise TapeCheckError(
                f"a replayed {what} differs from an eager one in {name} by {found.relative:.3g} of its values in the "
                f"mean (root mean square), at most {spread.mean:g} is allowed"
            )
