"""Compares a replay of a tape with an eager run: the logits, every byte of the KV cache, and other states."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....errors import TapeCheckError
from ....graph import GraphDescription
from ....memory import BufferRequest
from ...element_types import byte_count
from ..gpu_engine import GpuBuffers
from ..sequence_buffers import SequenceBuffers

__all__ = [
    "BESIDE_INT8",
    "FUSED_STEP",
    "LAYERED_RUN",
    "PROMPT_RUN",
    "RECORDED_STEP",
    "SAME_KERNELS",
    "WIDENED_STEP",
    "Compared",
    "Spread",
    "Tolerance",
    "check_replay",
    "require_alike",
]


@dataclass(frozen=True)
class Spread:
    """The allowed difference of caches in the mean and in single elements. Single elements say little: among thousands
    of positions, rounding to fewer bits changes the attention of a few.
    """

    mean: float
    """Root of the mean square of the differences, relative to that of the values."""
    largest: float
    """Difference of any element, relative to the largest value."""


@dataclass(frozen=True)
class Tolerance:
    """The largest difference from an eager run, relative to the largest value, by the type of the computation."""

    float32: float
    float16: float
    caches: Spread | None = None
    """For KV caches, in place of `limits`."""

    def of(self, dtype: str) -> float:
        """The limit for a dtype. Raises KeyError for a dtype that is compared bit for bit."""
        return {"float32": self.float32, "float16": self.float16}[dtype]


SAME_KERNELS = Tolerance(1e-5, 2e-3)
"""A session of any model: the replay and the eager run are the same kernels."""

RECORDED_STEP = Tolerance(2e-4, 2e-2)
"""A decode step or prompt run of onnxruntime-web's kernels, which adds the same terms as the eager one. Attention that
is split differently adds in another order, which changes a few units in the last place.
"""

FUSED_STEP = Tolerance(2e-3, 0.25)
"""A decode step with our kernels. Each operation was compared with the truth before; this finds faults of the whole
step, such as a number frozen at the length of the recorded run, which changes results by as much as the largest value.
Two sound float16 steps of a trained model were 0.06 apart.
"""

BESIDE_INT8 = Tolerance(0.25, 0.25)
"""The same if kernels of onnxruntime-web round activations to int8: two correct float32 steps of SmolLM2, one of them
with such kernels, were 0.012 apart.
"""

WIDENED_STEP = Tolerance(1e-3, 0.1)
"""A step of several rows or positions, against steps of one. Both are fused, and their products add in different
orders. A row that reads another row's values differs by as much as the largest value.
"""

PROMPT_RUN = Tolerance(0.125, 0.125, Spread(mean=0.1, largest=0.5))
"""A prompt run whose products or attention are ours and round differently from onnxruntime-web's, for example to int8.
A product of the wrong rows or scales differs by as much as the largest value. The caches of correct runs of SmolLM2 and
of a Llama shape in float16 were 0.01 apart in the mean, and 0.16 in a single element of 2048 positions. A wrong tile of
64 rows gives 0.18 in the mean.
"""

LAYERED_RUN = Tolerance(0.05, 0.05, Spread(mean=0.05, largest=0.25))
"""A vision graph whose layers are our kernels, against the whole graph. The features of 27 layers of random weights in
float16 were 0.0085 apart in the mean, of 2 layers 0.0014."""

QUANTIZED = Spread(mean=0.1, largest=0.5)
"""Quantized caches, in any of these runs: an element that rounding moves past the middle of a step differs by a whole
step.
"""


class Compared(NamedTuple):
    """A result of a replay, and the expected one: buffers of `bytes`, which hold values of a type."""

    name: str
    found: int
    expected: int
    bytes: int
    dtype: str


async def require_alike(
    engine: GpuBuffers,
    message: str,
    compared: Sequence[Compared],
    tolerance: Tolerance,
    caches: Collection[str] = (),
    computed: str | None = None,
) -> None:
    """Compare on the device; raise TapeCheckError for the first result whose difference the tolerance does not allow.

    `message` begins the error, such as "a replayed step differs from an eager one"; `caches` are the names of values to
    which `tolerance.caches` applies; `computed` is the type of the computation if it differs from that of the values.
    """
    differences = await engine.compare([each[1:] for each in compared])
    for (name, *_, dtype), found in zip(compared, differences, strict=True):
        spread = QUANTIZED if dtype.startswith("int") else tolerance.caches if name in caches else None
        limit = (spread.largest if spread else tolerance.of(computed or dtype)) * max(1.0, found.max_magnitude)
        if found.unlike or found.max_difference > limit:
            raise TapeCheckError(
                f"{message} in {name} by {found.max_difference:g} ({found.unlike} elements finite in only one); at "
                f"most {limit:g} is allowed"
            )
        if spread and found.relative > spread.mean:
            raise TapeCheckError(
                f"{message} in {name} by {found.relative:.3g} of its values in the mean (root mean square); at most "
                f"{spread.mean:g} is allowed"
            )


async def check_replay(
    engine: GpuBuffers,
    buffers: SequenceBuffers,
    about: GraphDescription,
    what: str,
    replay: Callable[[], Awaitable[None]],
    eager: Callable[[], Awaitable[None]],
    tolerance: Tolerance = RECORDED_STEP,
) -> None:
    """Run `what`, a step or a prompt's run, by `replay` and by `eager`, from the present inputs, and compare the
    results. Neither run changes the inputs, except states, which are restored between the two. If a graph computes in
    float16 and casts to float32, float16's tolerance holds.

    Raises TapeCheckError with the largest difference and the tolerance. Logits are filled with NaN before each run.
    """
    watched = [(about.logits, buffers.spans["logits"], about.logits_dtype)]
    watched += [(pair.present, buffers.spans[f"kv {pair.past}"], about.rows_of(pair)) for pair in about.cache]
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
        # A vocabulary of odd size leaves elements at the end of a buffer that only some kernels write.
        row = byte_count(about.logits_dtype, (about.vocab_size,))
        sizes = [span.length // row * row if name == about.logits else span.length for name, span, _ in watched]
        compared = [
            Compared(name, copy.handle, span.buffer.handle, size, dtype)
            for (name, span, dtype), copy, size in zip(watched, copies, sizes, strict=True)
        ]
        message = f"a replayed {what} differs from an eager one"
        others = {name for name, *_ in watched} - {about.logits}
        await require_alike(engine, message, compared, tolerance, others, "float16" if about.needs_f16 else None)
    finally:
        for copy in allocated:
            copy.close()
