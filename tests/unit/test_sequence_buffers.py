"""The buffers of a sequence over host memory: what prompts write into masks and ids, and whose buffers are let go."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from capstan import graph
from capstan.device.cache_rows import PictureSpan
from capstan.device.host_memory import view_of
from capstan.device.rope_tables import RopeTables, turned
from capstan.device.webgpu.sequence_buffers import SequenceBuffers
from capstan.graph import LongRope, RopeTable, TableRows
from capstan.memory import DeviceSpan, Loan
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.test_host_memory import Heap

NANO = Path(__file__).parents[1] / "fixtures/nano-llama"
CAPACITY, CHUNK = 32, 8


def allocated(given: Loan | None = None) -> SequenceBuffers:
    model = graph.parse((NANO / "model.onnx").read_bytes())
    about = graph.describe(model, parse_genai_config((NANO / "genai_config.json").read_bytes()).decoder, 512)
    made = SequenceBuffers.allocate(Heap(), about, CAPACITY, CHUNK, "test", offset_alignment=256, given=given)
    return asyncio.run(made)


def numbers(span: DeviceSpan, count: int) -> list[int]:
    return list(array("q", bytes(view_of(span)[: 8 * count])))


def mask(buffers: SequenceBuffers) -> list[int]:
    return numbers(buffers.spans["mask"], CAPACITY)


def ones(count: int) -> list[int]:
    return [1] * count + [0] * (CAPACITY - count)


@pytest.mark.parametrize("valid", [None, 5, 7, 12])
def test_a_prompt_sees_all_positions_before_it_and_its_own(valid: int | None) -> None:
    buffers = allocated()
    buffers.set_mask(5 if valid is None else valid)
    # A sequence may have ended within a burst at any position from 5 on.
    buffers.write_prompt([40, 41, 42], 7, None if valid is None else min(valid, 7))
    assert mask(buffers)[:10] == [1] * 10
    assert numbers(buffers.spans["prompt ids"], 3) == [40, 41, 42]


def test_a_step_s_input_sets_mask_and_length() -> None:
    buffers = allocated()
    buffers.set_mask(20)
    buffers.set_input(9, 6)
    assert mask(buffers) == ones(7)
    assert numbers(buffers.spans["input ids"], 1) == [9]
    assert list(array("I", bytes(view_of(buffers.spans["state"])[:12]))) == [7, 0, 0]


def test_given_buffers_are_held_until_the_sequence_ends() -> None:
    theirs = Heap().allocate(8 * CAPACITY, label="mask")
    buffers = allocated(Loan({"mask": theirs.span()}))
    theirs.close()
    buffers.set_mask(3)
    assert list(array("q", bytes(theirs.handle))) == ones(3)
    own = buffers.spans["logits"].buffer
    buffers.destroy()
    assert own.closed
    assert theirs.loans == []


def test_rotary_tables_hold_the_rows_for_the_length() -> None:
    """A row may have any number of bytes, and what is written is a multiple of four."""
    rows = TableRows("", 0, 0, 0)
    rope = LongRope(5, (RopeTable("cos", "float16", 3, rows, rows), RopeTable("sin", "float16", 3, rows, rows)))
    parts = [letter * 6 * count for count, letters in ((5, (b"s", b"S")), (40, (b"l", b"L"))) for letter in letters]
    about = replace(allocated().about, rope=rope)
    made = SequenceBuffers.allocate(
        Heap(), about, 33, CHUNK, "test", offset_alignment=256, tables=RopeTables.of(rope, parts)
    )
    buffers = asyncio.run(made)

    def held(name: str) -> bytes:
        return bytes(view_of(buffers.spans[f"rope {name}"]))[: 33 * 6]

    assert (held("cos"), held("sin")) == (b"s" * 30 + b"l" * 168, b"S" * 30 + b"L" * 168)
    buffers.rotate(True)
    assert (held("cos"), held("sin")) == (b"l" * 198, b"L" * 198)
    buffers.rotate(False)
    assert held("cos") == b"s" * 30 + b"l" * 168
    feeds, _ = buffers.tensors("input", 1)
    assert {feed.name: tuple(feed.dims) for feed in feeds if feed.name in ("cos", "sin")} == {
        "cos": (33, 3),
        "sin": (33, 3),
    }


def test_rotary_tables_are_mixed_for_pictures_and_go_on_in_a_copy() -> None:
    rows = TableRows("", 0, 0, 0)
    rope = LongRope(0, (RopeTable("cos", "float16", 3, rows, rows),), (1, 1, 1))
    table = array("H", [3 * row + column for row in range(CAPACITY) for column in range(3)]).tobytes()
    about = replace(allocated().about, rope=rope)

    def made() -> SequenceBuffers:
        tables = RopeTables.of(rope, [b"", table])
        return asyncio.run(
            SequenceBuffers.allocate(Heap(), about, CAPACITY, CHUNK, "test", offset_alignment=256, tables=tables)
        )

    def held(buffers: SequenceBuffers) -> bytes:
        return bytes(view_of(buffers.spans["rope cos"]))[: len(table)]

    one, other, pictures = made(), made(), [PictureSpan(4, 2, 3)]
    assert held(one) == table
    one.see(None, (), pictures)
    assert held(one) == turned(table, 6, rope.sections, pictures) != table
    other.copy_from(one, 12)
    assert held(other) == held(one)
    one.see(None, ())
    assert held(one) == table
