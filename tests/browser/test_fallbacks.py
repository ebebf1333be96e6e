"""Steps down say so: an uncapturable graph, lost copies, a tape that is not the eager step. Never silently wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.least_limits import LEAST
from tests.browser.model_variants import Variants, through_hardmax
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def uncapturable(variants: Variants) -> str:
    return variants.graph("nano-hardmax", through_hardmax)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("capture", ["tape", "ort"])
def test_an_uncapturable_graph_runs_eagerly_and_the_note_names_the_node(
    capture: str, uncapturable: str, harness: Harness, scripts: PageScripts
) -> None:
    found = harness.generate(uncapturable, prompt_ids=PROMPT, max_new_tokens=8, capture=capture)
    assert found["capture"] == "off"
    assert "node /added/Hardmax (Hardmax)" in found["capture_note"]
    assert "no WebGPU kernel" in found["capture_note"]
    assert found["token_ids"] == oracle.greedy(LLAMA, PROMPT, 8)


@pytest.mark.extended
def test_lost_copies_leave_orts_capture_but_not_the_tape(scripts: PageScripts) -> None:
    kinds = scripts.run("fallbacks", "operations", "nano-copies", model="nano-copies")
    copies = kinds.count("Copy")
    assert copies > 0, "the fixture has no buffer copies"
    [found] = scripts.run("fallbacks", "damaged", "nano-copies", model="nano-copies", damages=["none"], capture="ort")
    assert found["capture"] == "off"
    assert found["note"] == f"onnxruntime-web's capture loses {copies} buffer copies of this model's decode step"
    assert found["ids"] == oracle.greedy(FIXTURES / "nano-copies", PROMPT, 8)


@pytest.mark.extended
def test_a_tape_without_the_copies_is_found_out(scripts: PageScripts) -> None:
    kinds = scripts.run("fallbacks", "operations", "nano-copies", model="nano-copies")
    # The first copy's target has the same bytes already, from an earlier operation of the same step.
    harmless, *copies = [place for place, kind in enumerate(kinds) if kind == "Copy"]
    found = scripts.run("fallbacks", "damaged", "nano-copies", model="nano-copies", damages=[harmless, *copies])
    wanted = oracle.greedy(FIXTURES / "nano-copies", PROMPT, 8)
    assert [outcome["ids"] for outcome in found] == [wanted] * len(found)
    assert [outcome["capture"] for outcome in found] == ["tape"] + ["off"] * len(copies)
    for outcome in found[1:]:
        assert "the tape cannot be used: a replayed step differs from an eager one in logits" in outcome["note"]
        assert "loses" in outcome["note"], "ORT's own capture has no copy at all"


@pytest.mark.extended
def test_a_tape_with_an_operation_missing_steps_down_to_orts_capture(scripts: PageScripts) -> None:
    kinds = scripts.run("fallbacks", "operations", "nano-llama", model="nano-llama")
    dispatches = [i for i, kind in enumerate(kinds) if kind != "Clear"]
    indices = [dispatches[len(dispatches) * part // 4] for part in range(4)] + [dispatches[-1]]
    damages = [*indices, "swap", "empty"]
    found = scripts.run("fallbacks", "damaged", "nano-llama", model="nano-llama", damages=damages)
    wanted = oracle.greedy(LLAMA, PROMPT, 8)
    for damage, outcome in zip(damages, found, strict=True):
        assert outcome["ids"] == wanted, f"{damage} went unseen: {outcome}"
        if outcome["capture"] == "ort":
            assert outcome["note"].startswith("the tape cannot be used: a replayed step differs from an eager one in ")
        else:
            assert (outcome["capture"], outcome["note"]) == ("tape", None), damage
    # An operation whose loss changes nothing may stay away; the last one computes the logits.
    assert [outcome["capture"] for outcome in found[-3:]] == ["ort"] * 3
    assert [outcome["capture"] for outcome in found].count("ort") >= 5


@pytest.mark.extended
def test_a_recording_that_is_not_understood_is_used_by_nobody(scripts: PageScripts) -> None:
    [found] = scripts.run("fallbacks", "damaged", "nano-llama", model="nano-llama", damages=["error"])
    assert found["capture"] == "off"
    assert "not one sequence twice" in found["note"]
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 8)


CHUNK = [(37 * i + 11) % 509 for i in range(64)]
"""A prompt that has a prefill tape when it comes again."""


@pytest.mark.extended
def test_a_recording_that_fails_leaves_onnxruntime_as_it_was(scripts: PageScripts) -> None:
    """The graph is made for more storage buffers than a kernel may bind."""
    call = {"model": "nano-llama", "prompt": CHUNK, "count": 8, "times": 2, "limits": LEAST, "buffers": 10}
    found = scripts.run("adapters", "limited", "nano-llama", **call)
    assert found["ids"] == [oracle.greedy(LLAMA, CHUNK, 8)] * 2
    assert found["capture"] == "off"
    assert "Too many storage buffers in shader. Current: 9, Max is 8" in found["note"]
    assert found["passes"]["prefill"].startswith("64 positions: not used: onnxruntime-web could not capture")
    assert found["healthy"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["nano-llama", "nano-blocks"])
def test_eight_buffers_of_a_kernel_are_enough(name: str, scripts: PageScripts) -> None:
    """onnxruntime-web's attention of packed q, k and v would bind 9, so that these are parts, or become parts. So would
    a gated product with a norm and zero points."""
    call = {"model": name, "prompt": CHUNK, "count": 8, "times": 2, "limits": LEAST}
    found = scripts.run("adapters", "limited", name, **call)
    assert found["ids"] == [oracle.greedy(FIXTURES / name, CHUNK, 8)] * 2
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert re.fullmatch(r"\d+ operations became 12, 1 of them as recorded", found["passes"]["fused"])


@pytest.mark.extended
def test_small_workgroups_are_enough_for_tapes(scripts: PageScripts) -> None:
    limits = {**LEAST, "maxStorageBuffersPerShaderStage": 10, "minStorageBufferOffsetAlignment": 32}
    call = {"model": "nano-llama", "prompt": CHUNK, "count": 8, "times": 2, "limits": limits}
    found = scripts.run("adapters", "limited", "nano-llama", **call)
    assert found["ids"] == [oracle.greedy(LLAMA, CHUNK, 8)] * 2
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert "operations became" in found["passes"]["fused"]
    assert found["passes"]["prefill"].startswith("64 positions: 36 operations became")
    assert found["alignment"] == [256, 256], "of the device, not of the adapter"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("part", "lost", "given", "reason"),
    [
        pytest.param(
            "constants",
            "WORKGROUP",
            None,
            r"kernel \w+ does not compile on this adapter: line .*unresolved value 'WORKGROUP'.*",
            id="a constant",
        ),
        pytest.param(
            "bindings",
            "x",
            "vector",
            r"kernel matvec_q4 declares .*; not given: x; given and not declared: vector",
            id="a binding",
        ),
    ],
)
def test_kernels_that_cannot_be_made_leave_the_device_sound(
    part: str, lost: str, given: str | None, reason: str, scripts: PageScripts
) -> None:
    wanted = {"model": "nano-llama", "prompt": PROMPT, "count": 8, "part": part, "lost": lost, "given": given}
    found = scripts.run("adapters", "spoiled", "nano-llama", **wanted)
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 8)
    assert (found["capture"], found["healthy"]) == ("tape", True)
    assert re.fullmatch(f"not used: {reason}", found["passes"]["fused"], re.DOTALL), found["passes"]["fused"]


def test_memory_that_no_buffer_can_have_is_refused_and_the_device_stays_sound(scripts: PageScripts) -> None:
    found = scripts.run("adapters", "too_large", "nano-llama", model="nano-llama")
    assert found["DEFAULT"].startswith("buffer 'huge' needs 68719476736 bytes and this adapter")
    assert found["HOST_ACCESSIBLE"].startswith("staging buffer 'huge' needs 68719476736 bytes and")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 256}, "this tape was recorded for max_length=256, got 512; record a tape for 512"),
        ({"adapter": "another"}, "this tape was recorded for adapter='another', got 'google swiftshader'"),
        ({"model": "/models/other/"}, "this tape was recorded for model='/models/other/', got '/models/nano-llama/'"),
    ],
    ids=["max_length", "adapter", "model"],
)
def test_a_tape_recorded_for_something_else_is_refused_with_expected_and_got(
    changes: dict[str, Any], message: str, scripts: PageScripts
) -> None:
    found = scripts.run("fallbacks", "mismatched", "nano-llama", model="nano-llama", changes=changes)
    assert found["error"].startswith(f"TapeKeyError: {message}")
    assert found["first"] == found["again"] == oracle.greedy(LLAMA, PROMPT, 6)
    assert found["capture"] == "tape"
