"""Copies on a device: what single cases come to, and thousands of random ones carried out by WebGPU's rules."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from capstan.errors import MemoryTypeError
from capstan.memory import CopyStep, DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType, plan_copies

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)
STAGING = MemoryInfo("WebGPU_Staging", "webgpu", MemoryType.HOST_ACCESSIBLE, heap="gpu-process")
GARBAGE = 0xEE
PLANS = 1000


def span(buffer: int, offset: int, length: int, size: int = 64, memory: MemoryInfo = STORAGE) -> DeviceSpan:
    return DeviceSpan(DeviceBuffer(buffer, size, memory, label=f"b{buffer}", free=lambda: None), offset, length)


@pytest.mark.parametrize(
    ("source", "destination", "step"),
    [
        (span(1, 4, 8), span(2, 8, 8), (1, 4, 2, 8, 8)),
        (span(1, 5, 7), span(2, 9, 7), (1, 5, 2, 9, 7)),
        # Up to the end of the last word where that is padding: of the destination.
        (span(1, 4, 7), span(2, 0, 7, size=7), (1, 4, 2, 0, 8)),
        (span(1, 0, 7, size=7), span(2, 0, 7, size=7), (1, 0, 2, 0, 8)),
        (span(1, 4, 7, size=11), span(2, 8, 7, size=15), (1, 4, 2, 8, 8)),
        (span(1, 4, 7), span(2, 8, 7), (1, 4, 2, 8, 7)),
        (span(1, 0, 7, size=7), span(2, 0, 7, size=8), (1, 0, 2, 0, 7)),
        (span(1, 5, 7), span(2, 0, 7, size=7), (1, 5, 2, 0, 7)),
        (span(1, 0, 7), span(1, 56, 7, size=63), (1, 0, 1, 56, 7)),
        (span(1, 0, 8), span(1, 4, 8), (1, 0, 1, 4, 8)),
        (span(1, 0, 8), span(2, 8, 8, memory=STAGING), (1, 0, 2, 8, 8)),
        (span(1, 0, 6), span(2, 0, 6, size=6, memory=STAGING), (1, 0, 2, 0, 8)),
    ],
)
def test_a_copy_takes_whole_words_where_it_may(source: DeviceSpan, destination: DeviceSpan, step: object) -> None:
    assert plan_copies([(source, destination)]) == [step]


def test_neighbours_are_one_copy() -> None:
    pairs = [(span(1, at, 4), span(2, 8 + at, 4)) for at in (0, 4, 8)]
    assert plan_copies(pairs) == [(1, 0, 2, 8, 12)]
    assert len(plan_copies([pairs[0], pairs[2]])) == 2
    assert len(plan_copies([pairs[1], pairs[0]])) == 2


def test_what_a_copy_has_written_is_not_merged_away() -> None:
    pairs = [(span(1, 0, 4), span(1, 4, 4)), (span(1, 4, 4), span(1, 8, 4))]
    assert len(plan_copies(pairs)) == 2
    pairs = [(span(1, 8, 4), span(1, 4, 4)), (span(1, 12, 4), span(1, 8, 4))]
    assert plan_copies(pairs) == [(1, 8, 1, 4, 8)]


def test_nothing_is_copied_onto_itself_or_of_no_length() -> None:
    assert plan_copies([(span(1, 4, 8), span(1, 4, 8)), (span(1, 0, 0), span(2, 0, 0))]) == []


@pytest.mark.parametrize(("offset", "length"), [(2, 8), (0, 6)])
def test_staging_memory_is_copied_to_in_words(offset: int, length: int) -> None:
    staged, storage = span(1, offset, length, memory=STAGING), span(2, 0, length)
    with pytest.raises(MemoryTypeError) as caught:
        plan_copies([(storage, staged)])
    assert str(caught.value) == (
        f"copy destination: bytes {offset} to {offset + length} of buffer 'b1', which is in WebGPU_Staging of webgpu "
        "device 0, expected whole words of 4 bytes there, or WebGPU_Buffer; start and end at multiples of 4, or "
        "allocate it as MemoryType.DEFAULT"
    )


@pytest.mark.parametrize("destination", [span(2, 0, 8), span(1, 8, 8, memory=STAGING), span(2, 0, 8, memory=STAGING)])
def test_nothing_is_copied_from_staging_memory(destination: DeviceSpan) -> None:
    with pytest.raises(MemoryTypeError) as caught:
        plan_copies([(span(1, 0, 8, memory=STAGING), destination)])
    assert str(caught.value) == (
        "copy source: buffer 'b1' is in WebGPU_Staging of webgpu device 0, whose usage is copy_dst | map_read, "
        "expected WebGPU_Buffer of webgpu device 0; read it with copy_device_to_cpu, and write the bytes to "
        "WebGPU_Buffer"
    )


def test_odd_copies_that_make_whole_words_together_reach_staging_memory() -> None:
    pairs = [(span(1, at, 2), span(2, at, 2, memory=STAGING)) for at in (0, 2)]
    assert plan_copies(pairs) == [(1, 0, 2, 0, 4)]


class Buffers:
    """Buffers with their padding; copies follow WebGPU's rules."""

    def __init__(self, rng: random.Random, memories: Sequence[MemoryInfo]) -> None:
        self.rng = rng
        self.made = []
        self.data = []
        for number, memory in enumerate(memories):
            size = rng.choice([rng.randrange(8, 40), 4 * rng.randrange(2, 10)])
            self.made.append(DeviceBuffer(number, size, memory, label=f"b{number}", free=lambda: None))
            self.data.append(bytearray(rng.randbytes(size)) + bytearray([GARBAGE] * (-size % 4)))

    def contents(self) -> list[bytes]:
        return [bytes(data[: buffer.size]) for buffer, data in zip(self.made, self.data, strict=True)]

    def span(self, length: int) -> DeviceSpan | None:
        buffer = self.rng.choice(self.made)
        room = buffer.size - length
        if room < 0:
            return None
        return DeviceSpan(buffer, self.rng.choice([0, room, room // 4 * 4, self.rng.randrange(0, room + 1)]), length)

    def pairs(self) -> list[tuple[DeviceSpan, DeviceSpan]]:
        """Random ones; now and then one goes on where the last one ended."""
        made: list[tuple[DeviceSpan, DeviceSpan]] = []
        for _ in range(self.rng.randrange(1, 10)):
            source: DeviceSpan | None
            target: DeviceSpan | None
            if made and self.rng.random() < 0.5:
                starts = [(end.buffer, end.offset + end.length) for end in made[-1]]
                length = self.rng.randrange(0, min(buffer.size - start for buffer, start in starts) + 1)
                source, target = (DeviceSpan(buffer, start, length) for buffer, start in starts)
            else:
                whole = self.rng.choice(self.made).size
                length = self.rng.choice([0, 4, 12, self.rng.randrange(1, 14), whole, whole])
                source, target = self.span(length), self.span(length)
            if source and target:
                made.append((source, target))
        return made

    def carry_out(self, step: CopyStep) -> None:
        source, target = self.data[step.source], self.data[step.destination]
        assert self.made[step.source].memory is STORAGE
        if self.made[step.destination].memory is STAGING:
            assert not any(n % 4 for n in (step.source_offset, step.destination_offset, step.bytes))
        assert step.bytes > 0
        assert step.source_offset + step.bytes <= len(source)
        assert step.destination_offset + step.bytes <= len(target)
        moved = bytes(source[step.source_offset : step.source_offset + step.bytes])
        target[step.destination_offset : step.destination_offset + step.bytes] = moved


@pytest.mark.parametrize("seed", range(4))
def test_random_copies_do_what_a_loop_over_them_would(seed: int) -> None:
    rng = random.Random(100 + seed)
    merged = words = 0
    for _ in range(PLANS):
        buffers = Buffers(rng, rng.choices([STORAGE, STORAGE, STORAGE, STAGING], k=rng.choice([1, 2, 4])))
        pairs = buffers.pairs()
        wanted = [bytearray(data) for data in buffers.contents()]
        try:
            steps = plan_copies(pairs)
        except MemoryTypeError:
            assert any(end.buffer.memory is STAGING for pair in pairs for end in pair)
            continue
        for source, target in pairs:
            data = wanted[source.buffer.handle][source.offset : source.offset + source.length]
            wanted[target.buffer.handle][target.offset : target.offset + target.length] = data
        for step in steps:
            buffers.carry_out(step)
        assert buffers.contents() == [bytes(data) for data in wanted]
        real = [pair for pair in pairs if pair[0].length]
        merged += len(real) - len(steps)
        words += sum(step.bytes for step in steps) - sum(source.length for source, _ in real) > 0
        assert len(steps) <= len(real)
    assert merged > PLANS // 10
    assert words > PLANS // 100
