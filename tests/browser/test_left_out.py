"""onnxruntime-web leaves inputs out of captured attention; taped steps pick onnxruntime-genai's ids all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capstan.graph.onnx_pb2 import AttributeProto, ModelProto
from tests import oracle
from tests.browser.model_variants import LLAMA, Variants, looking_back, with_cached_windows, with_sinks
from tests.browser.page_scripts import PageScripts

GEMMA2, GEMMA3 = LLAMA.parent / "nano-gemma2", LLAMA.parent / "nano-gemma3"
SHORT, LONG = [5, 6, 7, 8, 9], [(31 * i + 7) % 509 for i in range(150)]
COUNT = 100
FUSED = {
    "nano-gemma2": "0 of them as recorded",
    "nano-gemma3": "0 of them as recorded",
    "nano-sinks-16": "1 of them as recorded",
    "nano-window-16": "1 of them as recorded",
    "nano-cached-16": "1 of them as recorded",
}


def with_windows_and_sinks(model: ModelProto) -> None:
    """As gpt-oss has them, and in the last layer one more score of 0 instead of sinks."""
    looking_back(16)(model)
    with_sinks(model)
    last = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][-1]
    del last.input[11:]
    last.attribute.add(name="smooth_softmax", type=AttributeProto.INT, i=1)


@pytest.fixture(scope="module")
def folders(variants: Variants) -> dict[str, Path]:
    """Models whose first layer has a window of 24 positions, and three whose both layers have one of 16."""
    variants.graph("nano-window-16", looking_back(16))
    variants.graph("nano-sinks-16", with_windows_and_sinks)
    with_cached_windows(variants, "nano-cached-16", 16)
    return {
        "nano-cached-16": variants.place / "nano-cached-16",
        "nano-sinks-16": variants.place / "nano-sinks-16",
        "nano-gemma2": GEMMA2,
        "nano-gemma3": GEMMA3,
        "nano-window-16": variants.place / "nano-window-16",
    }


def generated(scripts: PageScripts, name: str, prompt: list[int], count: int, **options: Any) -> dict[str, Any]:
    actions = [("append", prompt), ("generate", count)]
    found: dict[str, Any] = scripts.run("sequences", "drive", name, model=name, actions=actions, **options)
    return found


@pytest.mark.one_in
@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "past the window"])
@pytest.mark.parametrize("name", FUSED)
def test_greedy_ids_are_the_oracles_past_the_window(
    name: str, prompt: list[int], folders: dict[str, Path], scripts: PageScripts
) -> None:
    found = generated(scripts, name, prompt, COUNT)
    assert (found["capture"], found["note"]) == ("tape", None)
    assert found["picked"] == oracle.greedy(folders[name], prompt, COUNT)
    assert found["passes"]["fused"].endswith(FUSED[name])
    assert "left out" not in found["passes"]


def test_windows_and_sinks_change_what_is_picked(folders: dict[str, Path]) -> None:
    chain = [LLAMA, folders["nano-window-16"], folders["nano-sinks-16"]]
    assert len({tuple(oracle.greedy(folder, SHORT, COUNT)) for folder in chain}) == 3
    for prompt in (SHORT, LONG):
        whole, cached = (oracle.greedy(folders[name], prompt, COUNT) for name in ("nano-window-16", "nano-cached-16"))
        assert cached == whole


@pytest.mark.extended
def test_a_rewind_to_before_the_end_of_the_window_and_an_append_are_the_oracles(
    folders: dict[str, Path], scripts: PageScripts
) -> None:
    actions = [
        ("append", SHORT),
        ("generate", 40),
        ("rewind", 12),
        ("generate", 30),
        ("append", LONG),
        ("generate", 20),
    ]
    found = scripts.run("sequences", "drive", "nano-gemma3", model="nano-gemma3", actions=actions)
    assert (found["capture"], found["note"]) == ("tape", None)
    assert found["picked"] == oracle.drive(folders["nano-gemma3"], actions).picked


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options", [{"capture": "ort"}, {"passes": ["clears", "matvec"]}], ids=["by onnxruntime-web", "as recorded"]
)
def test_a_step_that_would_lose_the_window_is_not_replayed(
    options: dict[str, Any], folders: dict[str, Path], scripts: PageScripts
) -> None:
    found = generated(scripts, "nano-window-16", SHORT, 30, **options)
    assert found["picked"] == oracle.greedy(folders["nano-window-16"], SHORT, 30)
    assert found["capture"] == "off"
    assert found["note"] == (
        "the graph cannot be captured: attention over past_key_values.0.key looks back 16 positions, which "
        "onnxruntime-web ignores in a captured run, and max_length is 512; use at most 16"
    )


@pytest.mark.extended
def test_a_sequence_that_cannot_outgrow_the_window_is_captured_in_every_way(
    variants: Variants, scripts: PageScripts
) -> None:
    name = variants.graph("nano-window-256", looking_back(256))
    for capture in ("ort", "tape"):
        found = generated(scripts, name, SHORT, 20, capture=capture, max_length=256)
        assert (found["capture"], found["note"]) == (capture, None)
        assert found["picked"] == oracle.greedy(LLAMA, SHORT, 20)
    assert found["passes"]["fused"].endswith("1 of them as recorded")


HIDDEN, CAPPED = "return total - min(total, WINDOW);", "return SOFTCAP * LOG2_E * tanh(clamp(x, -10.0, 10.0));"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "wanted", "instead"),
    [
        ("nano-window-16", HIDDEN, "return 0u;"),
        pytest.param("nano-window-16", HIDDEN, "return total - min(total, WINDOW + 1u);", marks=pytest.mark.extended),
        pytest.param("nano-window-16", HIDDEN, "return total - min(total, WINDOW - 1u);", marks=pytest.mark.extended),
        pytest.param("nano-gemma2", CAPPED, "return SOFTCAP * LOG2_E * x;", marks=pytest.mark.extended),
        ("nano-gemma2", CAPPED, "return 1.01 * SOFTCAP * LOG2_E * tanh(clamp(x / 1.01, -10.0, 10.0));"),
    ],
    ids=["a lost window", "one position too many", "one position too few", "a lost cap", "a cap a hundredth off"],
)
def test_a_kernel_that_computes_something_else_is_found_out_and_steps_are_run_eagerly(
    name: str, wanted: str, instead: str, folders: dict[str, Path], scripts: PageScripts
) -> None:
    change = {"kernel": "attention", "wanted": wanted, "instead": instead}
    found = scripts.run("verdicts", "with_changed_kernel", name, model=name, prompt=SHORT, count=30, **change)
    assert found["changed"] > 0, "the kernel's text has changed: write this mutation again"
    assert found["capture"] == "off"
    assert "attention of 4 heads" in found["note"]
    assert found["note"].endswith(", which onnxruntime-web ignores in a captured run")
    replayed, configured = found["fallbacks"]
    assert replayed.startswith("a replayed decode step: the tape cannot be used: result of attention of 4 heads at ")
    assert 'enableGraphCapture "1": the tape cannot be used: result of attention of 4 heads at ' in configured
    assert found["ids"] == oracle.greedy(folders[name], SHORT, 30)
