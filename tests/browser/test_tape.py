"""A replayed step is an eager step: logits and caches, to the byte where the kernels are onnxruntime-web's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts

CONTEXT = 512
LENGTHS = [1, 62, 63, 64, 65, 127, 128, 129, CONTEXT - 1]
"""Valid positions before the step: kernels change at 64 and 128, and the last step fills the last position."""

TOLERANCE = 2e-4
"""Of the largest logit, in float32; capstan.device.step_recorder allows as much."""

EVERY_LENGTH = {"capacity": CONTEXT, "lengths": LENGTHS}


RECORDED = ("clears",)
DIRECT = ("clears", "direct")
"""Passes that leave onnxruntime-web's kernels as they are: caches are equal to the byte."""


@pytest.mark.parametrize(
    ("model", "passes"), [("nano-llama", RECORDED), ("nano-llama", DIRECT), ("nano-qwen2", DIRECT)]
)
def test_a_recorded_step_is_an_eager_step_where_kernels_change(
    model: str, passes: Sequence[str], scripts: PageScripts
) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=passes, **EVERY_LENGTH)
    assert [step["length"] for step in found] == LENGTHS
    for step in found:
        check(step)
        assert step["differing_bytes"] == [0] * len(step["differing_bytes"]), f"caches differ at {step['length']}"


@pytest.mark.parametrize("model", ["nano-llama", "nano-qwen2"])
def test_a_fused_step_is_an_eager_step_where_kernels_change(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=None, **EVERY_LENGTH)
    assert [step["length"] for step in found] == LENGTHS
    for step in found:
        check(step)


@pytest.mark.parametrize("model", ["nano-copies", "nano-float", "nano-granite", "nano-qwen3", "nano-shape"])
def test_a_tape_step_is_an_eager_step_for_every_fixture(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=None, capacity=256, lengths=[63, 64, 129])
    for step in found:
        check(step)


@pytest.mark.parametrize("model", ["nano-llama", "nano-copies"])
def test_a_tapes_private_buffers_are_touched_by_nobody_else(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "private_buffers", model, model=model, lengths=[1, 2, 31, 32, 63, 64, 100])
    assert found["private"] > 5
    assert found["bound"] > 20
    assert found["with_eager"] == [], "an eager run binds buffers of a tape"
    assert found["with_another_tape"] == [], "two tapes share buffers"


@pytest.mark.parametrize("model", ["nano-llama", "nano-copies"])
def test_recording_runs_nothing_although_ort_executes_a_capture_twice(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "recording", model, model=model)
    assert found["kinds"]["dispatch"] > 20
    assert found["submits"] == 0
    assert all(found["unchanged"]), "the recorded run wrote logits or caches"


def check(step: dict[str, Any]) -> None:
    length = step["length"]
    assert (step["capture"], step["note"]) == ("tape", None), length
    assert step["input"] == step["first"], f"at {length} the pick is not the next step's input"
    assert step["caches"] <= TOLERANCE * max(1.0, step["largest"]), f"caches differ by {step['caches']} at {length}"
    assert step["elsewhere"] == 0, f"the step at {length} changed the caches of other positions"
    assert all(step["wrote"]), f"the tape wrote no cache at {length}"
    assert step["logits"] <= TOLERANCE * max(1.0, step["largest"]), f"logits differ by {step['logits']} at {length}"
    assert step["tape_pick"] == step["eager_pick"], length
