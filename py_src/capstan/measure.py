"""Measures a decode step: its time on the GPU, the times of its operations, its time in JavaScript without Python, and
its logits.

Measurements need a generator that has a tape and has generated a token. Afterwards the sequence, the tokens computed
ahead, the sampler's state and the counters are restored. Other generators on the same device should rest meanwhile.

Browsers round the GPU's timestamps to 0.1 ms unless they are started with --enable-webgpu-developer-features; without
this option `operations` can only distinguish large operations from small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .errors import OptionError

if TYPE_CHECKING:
    from .device.row_interface import RowDecoder
    from .device.webgpu.rehearsal import Rehearsal
    from .generation.generator import Generator

__all__ = ["OperationTime", "forced", "gpu_step_time", "operations", "replay"]

ROUNDS = 5
"""The number of submits of which `gpu_step_time` takes the median."""
STILL, READINGS = 0.98, 10
"""After a reading below this share of the one before, another one follows, up to this number: an idle GPU raises its
clock over several readings. SmolLM2's step on an NVIDIA H200: 1.12 ms in the first reading, 0.60 in the seventh.
"""


@runtime_checkable
class Rehearsable(Protocol):
    """A decoder whose steps may be on a tape, which can be played for timing."""

    def rehearsal(self) -> Rehearsal:
        """A Rehearsal over the present sequence; only if `capture` is 'tape'."""


@dataclass(frozen=True)
class OperationTime:
    """The GPU's time for one dispatch in a separate pass. The pass adds some microseconds."""

    index: int
    """The index in the tape; the sampler's dispatches follow the tape's."""
    label: str
    """The pipeline's label. Pipelines of onnxruntime-web have none; then the names of the bound buffers."""
    microseconds: float
    bytes: int
    """Bytes of weights, caches and activations that it reads and writes; 0 for the sampler's. Bytes over time, compared
    with the GPU adapter's copy bandwidth, show the kernel's distance from the memory's limit.
    """


async def gpu_step_time(generator: Generator, steps: int = 32) -> float:
    """Milliseconds of GPU time of one decode step with its pick.

    Each submit has `steps` successive steps, so that the GPU never waits for the host; the time from the start of the
    first step to the end of the last step is divided by their number. The result is the median of five such submits.
    They are measured again while the result falls, since an idle GPU takes time to raise its clock. Raises OptionError
    without a tape or with no room for the steps, DeviceUnavailableError without timestamp queries.
    """

    async def take(decoder: RowDecoder) -> float:
        rehearsal = _rehearsal(decoder)
        _require_room(rehearsal, steps, 1)
        found = median(await rehearsal.step_time(steps, ROUNDS))
        for _ in range(READINGS - 1):
            before, found = found, median(await rehearsal.step_time(steps, ROUNDS))
            if found >= STILL * before:
                break
        return found

    return await generator.aside(take)


async def operations(generator: Generator, repeats: int = 16) -> list[OperationTime]:
    """The GPU's time for each dispatch of the next step, including the sampler's: medians over `repeats` (1 to 1000).

    Raises OptionError without a tape, DeviceUnavailableError without timestamp queries.
    """
    _require("repeats", repeats, 1, 1000, "the median settles long before")

    async def take(decoder: RowDecoder) -> list[OperationTime]:
        rehearsal = _rehearsal(decoder)
        _require_room(rehearsal, 1, 1)
        rounds = await rehearsal.operation_times(repeats)
        return [
            OperationTime(place, label, 1000 * median(ms for _, _, ms, _ in same), moved)
            for same in zip(*rounds, strict=True)
            for place, label, _, moved in same[:1]
        ]

    return await generator.aside(take)


async def replay(generator: Generator, steps: int, picks: int) -> float:
    """Milliseconds per token if only JavaScript drives the tape and the sampler.

    Bursts have `picks` tokens (1 to 64); the number of bursts in flight and the readback are the same as from Python.
    Time counts from the ids of the first burst to those of the last one, so `steps` must exceed `picks`. Raises
    OptionError.
    """

    async def take(decoder: RowDecoder) -> float:
        rehearsal = _rehearsal(decoder)
        _require("picks", picks, 1, decoder.max_burst, "bursts are no longer")
        _require_room(rehearsal, steps, picks + 1)
        return await rehearsal.replay(steps, picks)

    return await generator.aside(take)


async def forced(generator: Generator, ids: Sequence[int], see: Callable[[memoryview[float]], None]) -> None:
    """Play decode steps over given tokens: `see` is called with the logits before each of `ids` (float32 [vocab], valid
    during the call), beginning with those after the sequence's last token.

    This compares two ways of computing a step over the same text. Tokens that were computed ahead are discarded. Raises
    OptionError without a tape, with no room for the tokens, or for a token that the search never picks.
    """

    async def take(decoder: RowDecoder) -> None:
        rehearsal = _rehearsal(decoder)
        _require_room(rehearsal, len(ids), 1)
        row = decoder.row(0)
        await rehearsal.forced(generator.get_sequence(0), ids, row.logits, row.set_logits, see)

    try:
        await generator.aside(take)
    finally:
        # The forced steps have written over the cache entries of tokens that were computed ahead.
        generator.rewind_to(generator.token_count())


def _rehearsal(decoder: RowDecoder) -> Rehearsal:
    if not isinstance(decoder, Rehearsable) or decoder.capture != "tape":
        note = f" ({decoder.capture_note})" if decoder.capture_note else ""
        raise OptionError(
            f"the decode steps of this generator run with capture '{decoder.capture}'{note}; only steps of a tape can "
            "be timed: load the model on WebGPU with capture='tape'"
        )
    return decoder.rehearsal()


def _require_room(rehearsal: Rehearsal, steps: int, least: int) -> None:
    if rehearsal.room < least:
        raise OptionError(
            f"{rehearsal.room} more tokens fit into the KV cache of {rehearsal.buffers.capacity} positions; this "
            f"needs {least}: rewind_to and generate one, or raise max_length"
        )
    whole = rehearsal.buffers.end == rehearsal.buffers.capacity
    remedy = "raise max_length for more" if whole else "the caches of its windows have no room for more"
    _require("steps", steps, least, rehearsal.room, remedy)


def _require(name: str, value: int, least: int, most: int, remedy: str) -> None:
    if not least <= value <= most:
        raise OptionError(f"{name} is {value}; it must be from {least} to {most} here: {remedy}")
