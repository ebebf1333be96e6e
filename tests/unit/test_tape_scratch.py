"""The scratch of tapes in the user's buffers: which tape takes which, buffers that do not fit, and the state after a
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from capstan import OutOfMemoryError
from capstan.device.webgpu.tapes.tape_scratch import TapeScratch
from capstan.fallback import FallbackWarning
from capstan.memory import DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)


class Engine:
    """Tapes by handle, with the bytes of their scratch buffers and where those are; None is their own."""

    def __init__(self, **tapes: list[int]) -> None:
        self.sizes = dict(enumerate(tapes.values(), 1))
        self.given: dict[int, Sequence[tuple[int, int, int]] | None] = {}
        self.failing: int | None = None

    def tape_scratch(self, tape: int) -> list[int]:
        return self.sizes[tape]

    async def give_scratch(self, tape: int, spans: Sequence[tuple[int, int, int]] | None) -> None:
        if tape == self.failing:
            raise OutOfMemoryError("the test says so")
        self.given[tape] = spans


pytestmark = pytest.mark.usefixtures("no_fallbacks")


def spans(first: int, *sizes: int) -> tuple[DeviceSpan, ...]:
    return tuple(
        DeviceBuffer(first + number, size, STORAGE, free=lambda: None).span() for number, size in enumerate(sizes)
    )


def scratch_of(engine: Engine) -> tuple[TapeScratch, list[tuple[int, list[int]]]]:
    noted: list[tuple[int, list[int]]] = []
    return TapeScratch(cast(Any, engine), lambda rows, sizes: noted.append((rows, list(sizes)))), noted


async def test_tapes_take_turns_the_largest_part_in_the_largest_buffer() -> None:
    engine = Engine(step=[16, 1024, 256], rows=[512, 512], recorded=[])
    scratch, noted = scratch_of(engine)
    await scratch.add(1, "a step")
    await scratch.add(2, "a step of rows", 3)
    await scratch.add(3, "a step of recorded kernels")
    assert noted == [(1, [1024, 256, 16]), (3, [512, 512]), (1, [])]
    assert engine.given == {}
    await scratch.give(spans(10, 1024, 512, 16))
    parts = {1: [(12, 0, 16), (10, 0, 1024), (11, 0, 256)], 2: [(10, 0, 512), (11, 0, 512)]}
    assert engine.given == parts
    await scratch.give(None)
    assert engine.given == {1: None, 2: None}


async def test_a_tape_that_needs_more_has_its_own_and_says_so() -> None:
    engine = Engine(step=[256], longer=[256, 16], larger=[512], fits=[64])
    scratch, _ = scratch_of(engine)
    await scratch.add(1, "a step")
    await scratch.give(spans(10, 256))
    with pytest.warns(FallbackWarning, match="a run needs 2 buffers of 272 bytes in all; 1 of 256 bytes"):
        await scratch.add(2, "a run")
    with pytest.warns(FallbackWarning, match="another needs 1 buffers of 512 bytes in all"):
        await scratch.add(3, "another")
    await scratch.add(4, "a short one")
    assert engine.given == {1: [(10, 0, 256)], 4: [(10, 0, 64)]}
    scratch.drop(4)
    await scratch.give(spans(20, 512, 16))
    assert engine.given == {
        1: [(20, 0, 256)],
        2: [(20, 0, 256), (21, 0, 16)],
        3: [(20, 0, 512)],
        4: [(10, 0, 64)],
    }, "a tape that was closed is left alone"


async def test_a_failure_leaves_all_tapes_where_they_were() -> None:
    engine = Engine(first=[256], second=[256])
    scratch, _ = scratch_of(engine)
    for tape in (1, 2):
        await scratch.add(tape, "a step")
    old = spans(10, 256)
    await scratch.give(old)
    engine.failing = 2
    for new in (None, spans(20, 256)):
        with pytest.raises(OutOfMemoryError):
            await scratch.give(new)
        assert engine.given == {1: [(10, 0, 256)], 2: [(10, 0, 256)]}
        assert scratch.given == old
