"""A recording as the page hands it over, and what its operations read and write."""

from __future__ import annotations

from typing import Any

import pytest

from capstan.tape import Clear, Copy, Dispatch, DispatchIndirect, Op, Recording, Write

DATA: dict[str, Any] = {
    "handle": 3,
    "ops": [
        ["write", 13, 16, "00ff10"],
        ["dispatch", 1, [20], 4, 5, 6],
        ["indirect", 1, [20, 21], 14, 12],
        ["copy", 10, 0, 11, 8, 32],
        ["clear", 12, 4, 8],
    ],
    "pipelines": {
        "1": {
            "label": "GroupQueryAttention",
            "code": "fn main() {}",
            "bindings": [[0, 0, "read", "q"], [0, 1, "read_write", "out"], [0, 2, "uniform", "u"], [1, 0, "read", "k"]],
        }
    },
    "bind_groups": {"20": [[0, 10, 0, 64], [1, 11, 0, 64], [2, 13, 0, 16]], "21": [[0, 12, 256, 64]]},
    "buffers": {str(i): {"size": 64, "usage": 128, "label": ""} for i in range(10, 15)},
}
WRITE, DISPATCH, INDIRECT, COPY, CLEAR = range(5)


@pytest.fixture
def recording() -> Recording:
    return Recording.from_json(DATA)


def test_is_read_whole(recording: Recording) -> None:
    assert recording.handle == 3
    assert recording.ops == (
        Write(13, 16, b"\x00\xff\x10"),
        Dispatch(1, (20,), 4, 5, 6),
        DispatchIndirect(1, (20, 21), 14, 12),
        Copy(10, 0, 11, 8, 32),
        Clear(12, 4, 8),
    )
    assert recording.pipelines[1].label == "GroupQueryAttention"
    assert recording.pipelines[1].access == {(0, 0): "read", (0, 1): "read_write", (0, 2): "uniform", (1, 0): "read"}
    assert recording.pipelines[1].names == {(0, 0): "q", (0, 1): "out", (0, 2): "u", (1, 0): "k"}
    assert recording.pipelines[1].code == "fn main() {}"
    assert recording.groups[21].entries == ((0, 12, 256, 64),)
    assert recording.sizes == dict.fromkeys(range(10, 15), 64)


def test_what_the_step_alone_writes_is_private(recording: Recording) -> None:
    assert recording.private() == {11, 12}, "13 was uploaded, 10 and 14 are only read"
    assert recording.uploaded() == {}, "the upload does not begin at the buffer's start"


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown recorded operation 'draw'"):
        Recording.from_json({**DATA, "ops": [["draw", 1]]})


@pytest.mark.parametrize(
    ("index", "reads", "writes"),
    [
        (WRITE, set(), {13}),
        (DISPATCH, {10, 11, 13}, {11}),
        (INDIRECT, {10, 11, 12, 13, 14}, {11}),
        (COPY, {10}, {11}),
        (CLEAR, set(), {12}),
    ],
)
def test_access_is_what_the_wgsl_declares(recording: Recording, index: int, reads: set[int], writes: set[int]) -> None:
    op = recording.ops[index]
    assert recording.reads(op) == reads
    assert recording.writes(op) == writes


@pytest.mark.parametrize(
    ("op", "whole"),
    [
        (Copy(10, 0, 11, 0, 64), True),
        (Copy(10, 0, 11, 4, 60), False),
        (Copy(10, 0, 11, 0, 60), False),
        (Copy(11, 0, 10, 0, 64), False),
        (Clear(11, 0, 64), True),
        (Clear(11, 0, 60), False),
        (Dispatch(1, (20,), 1, 1, 1), False),
    ],
)
def test_only_whole_copies_and_clears_overwrite(recording: Recording, op: Op, whole: bool) -> None:
    assert recording.overwrites(op, 11) is whole


def test_operations_are_played_as_they_were_recorded(recording: Recording) -> None:
    played = [op.played() for op in recording.ops if not isinstance(op, Write)]
    assert played == DATA["ops"][1:]
