"""The digest by which a verdict is found again: equal for one step in other ids, another for any other step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from capstan.device.webgpu.tapes.verdicts import recording_digest
from capstan.tape import BindGroup, Copy, Dispatch, DispatchIndirect, Pipeline, Recording, Write

PASSES = ("clears", "direct")


def step(first: int = 0) -> Recording:
    """A dispatch, an indirect one, a copy and an upload over buffers whose ids begin at `first`."""
    a, b, c = first + 1, first + 2, first + 3
    pipeline, group = 20 + first, 30 + first
    ops = (
        Write(c, 0, b"abcd"),
        Dispatch(pipeline, (group,), 4, 2, 1),
        Copy(a, 0, b, 16, 32),
        DispatchIndirect(pipeline, (group,), c, 0),
    )
    pipelines = {pipeline: Pipeline("adds", {(0, 0): "read", (0, 1): "read_write"}, "fn main() {}")}
    groups = {group: BindGroup(((0, a, 0, 64), (1, b, 0, 64)))}
    return Recording(7, ops, pipelines, groups, {a: 64, b: 128, c: 16})


def digest(recording: Recording, passes: tuple[str, ...] = PASSES) -> str:
    return recording_digest(recording, recording.ops, passes)


def test_the_same_step_in_other_ids_has_the_same_digest() -> None:
    assert digest(step()) == digest(step(100))


OTHERS: dict[str, Callable[[Recording], Recording]] = {
    "a size": lambda made: replace(made, sizes={**made.sizes, 2: 256}),
    "a text": lambda made: replace(made, pipelines={20: replace(made.pipelines[20], code="fn main() { }")}),
    "an access": lambda made: replace(made, pipelines={20: replace(made.pipelines[20], access={(0, 0): "read"})}),
    "a binding": lambda made: replace(made, groups={30: BindGroup(((0, 1, 16, 48), (1, 2, 0, 64)))}),
    "a buffer": lambda made: replace(made, groups={30: BindGroup(((0, 1, 0, 64), (1, 1, 0, 64)))}),
    "an upload": lambda made: replace(made, ops=(Write(3, 0, b"abce"), *made.ops[1:])),
    "workgroups": lambda made: replace(made, ops=(made.ops[0], Dispatch(20, (30,), 4, 3, 1), *made.ops[2:])),
    "a copy": lambda made: replace(made, ops=(*made.ops[:2], Copy(1, 0, 2, 16, 16), made.ops[3])),
    "counts": lambda made: replace(made, ops=(*made.ops[:3], DispatchIndirect(20, (30,), 3, 4))),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_step_has_another_digest(what: str) -> None:
    assert digest(OTHERS[what](step())) != digest(step())


def test_other_passes_have_another_digest() -> None:
    assert digest(step(), ("clears",)) != digest(step())
