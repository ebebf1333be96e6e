"""A replayed step is an eager step: logits and caches, to the byte where the kernels are onnxruntime-web's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capstan.tape import PASSES
from capstan_host.model_arguments import BUNDLED
from tests import oracle
from tests.browser.model_variants import Variants, norms_in_attention
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONTEXT = 512
LENGTHS = [1, 62, 63, 64, 65, 127, 128, 129, CONTEXT - 1]
"""Valid positions before the step: kernels change at 64 and 128, and the last step fills the last position."""

TOLERANCE = 2e-4
"""The tolerance relative to the largest logit, in float32; the same as in capstan.device.webgpu.tapes.step_recorder."""

EVERY_LENGTH = {"capacity": CONTEXT, "lengths": LENGTHS}


PICKED: dict[str, Any] = {"prompt": [5, 6, 7, 8, 9], "count": 10}

RECORDED = ("clears",)
DIRECT = ("clears", "direct")
"""Passes that leave onnxruntime-web's kernels as they are: caches are equal to the byte."""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("model", "passes"),
    [
        pytest.param("nano-llama", RECORDED, marks=pytest.mark.extended),
        ("nano-llama", DIRECT),
        pytest.param("nano-qwen2", DIRECT, marks=pytest.mark.extended),
    ],
)
def test_a_recorded_step_is_an_eager_step_where_kernels_change(
    model: str, passes: Sequence[str], scripts: PageScripts
) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=passes, **EVERY_LENGTH)
    assert [step["length"] for step in found] == LENGTHS
    for step in found:
        check(step)
        assert step["differing_bytes"] == [0] * len(step["differing_bytes"]), f"caches differ at {step['length']}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["nano-llama", "nano-qwen2"])
def test_a_fused_step_is_an_eager_step_where_kernels_change(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=None, **EVERY_LENGTH)
    assert [step["length"] for step in found] == LENGTHS
    for step in found:
        check(step)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "ours"),
    [
        # The next kernel changes a part of a copy.
        ("nano-copies", 8),
        # Rotary embedding of neighbours.
        ("nano-ernie", 11),
        # Weights in float32, and gates recorded as separate operations.
        ("nano-float", 11),
        # Multipliers behind the lookup of embeddings, which is ours with it, attention and feed-forward.
        ("nano-granite", 12),
        # Rotary embedding of half of a head.
        ("nano-phi4", 11),
        # Norms of q and k in operations of their own, joined by attention.
        ("nano-qwen3", 11),
        # The embedding alone is recorded.
        ("nano-shape", 11),
    ],
)
def test_a_tape_step_is_an_eager_step_for_every_fixture(model: str, ours: int, scripts: PageScripts) -> None:
    found = scripts.run("steps", "tape_and_eager", model, model=model, passes=None, capacity=256, lengths=[63, 64, 129])
    for step in found:
        check(step)
        recorded, played, kept = fused_operations(step["passes"])
        assert played - kept == ours
        assert recorded > played


@pytest.mark.extended
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "apart"])
def test_norms_of_q_and_k_are_taken_in_by_attention_and_ids_are_the_oracles(
    inside: bool, variants: Variants, scripts: PageScripts
) -> None:
    fixture = FIXTURES / "nano-qwen3"
    name = variants.graph("nano-normed", norms_in_attention, fixture) if inside else fixture.name
    found = scripts.run("passes", "picked_with", name, model=name, choices=[None], **PICKED)
    [tape] = found["tapes"]
    assert tape["ids"] == oracle.greedy(fixture, PICKED["prompt"], PICKED["count"])
    _, played, kept = fused_operations(tape["passes"])
    assert played - kept == 11, "nine products and two attentions"
    assert tape["passes"]["direct"] == "no indirect dispatches"


@pytest.mark.extended
def test_ids_are_the_oracles_without_any_one_of_the_passes(scripts: PageScripts) -> None:
    # Tables of counts take long on a software adapter, and are compared with recorded counts elsewhere; "prefill" and
    # "prompts" are for prompts, "rows" for several sequences, and the model has no states.
    passes = [name for name in PASSES if name not in ("direct", "prefill", "prompts", "rows", "states")]
    choices = [passes, *([name for name in passes if name != left_out] for left_out in passes)]
    found = scripts.run("passes", "picked_with", "nano-llama", model="nano-llama", choices=choices, **PICKED)
    wanted = oracle.greedy(FIXTURES / "nano-llama", PICKED["prompt"], PICKED["count"])
    assert [each["ids"] for each in found["tapes"]] == [wanted] * len(choices)
    assert found["fallbacks"] == {}
    everything, *without = (fused_operations(each["passes"]) for each in found["tapes"])
    assert everything[1:] == (12, 1)
    assert all(kept > 1 for name, (_, _, kept) in zip(passes, without, strict=True) if name != "clears")
    assert [each["passes"]["clears"] for each in found["tapes"]].count("0 dropped") == 1


@pytest.mark.extended
def test_of_the_bundled_model_all_but_the_embedding_is_ours_and_ids_are_the_oracles(scripts: PageScripts) -> None:
    found = scripts.run("passes", "picked_with", "bundled", model="bundled", choices=[None], **PICKED)
    assert [each["ids"] for each in found["tapes"]] == [oracle.greedy(BUNDLED, PICKED["prompt"], PICKED["count"])]
    assert found["fallbacks"] == {}
    _, played, kept = fused_operations(found["tapes"][0]["passes"])
    assert (played, kept) == (27, 1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("model", "products"),
    [
        # Zero points, int4 and int8, by k_quant_mixed: four products a layer and the head, gates being one.
        ("nano-mixed", 9),
        # Zero points of blocks that rows do not fill; q, k and v apart, which are joined at load.
        ("nano-blocks", 9),
        ("nano-apart", 9),
        # DequantizeLinear and MatMul, rewritten at load, their weights turned on the GPU.
        ("nano-qdq", 9),
    ],
)
def test_of_other_quantizations_every_product_is_ours_and_ids_are_the_oracles(
    model: str, products: int, scripts: PageScripts
) -> None:
    passes = [name for name in PASSES if name not in ("attention", "prefill")]
    found = scripts.run("passes", "picked_with", model, model=model, choices=[None, passes], **PICKED)
    wanted = oracle.greedy(FIXTURES / model, PICKED["prompt"], PICKED["count"])
    assert [each["ids"] for each in found["tapes"]] == [wanted] * 2
    assert found["fallbacks"] == {}
    _, played, kept = fused_operations(found["tapes"][0]["passes"])
    assert (played - kept, kept) == (products + 2, 1), "all but the embedding, of attention one a layer"
    _, played, kept = fused_operations(found["tapes"][1]["passes"])
    assert played - kept == products


@pytest.mark.one_in(4)
@pytest.mark.parametrize("restored", [False, True], ids=["recorded", "restored"])
@pytest.mark.parametrize("model", ["nano-llama", "nano-copies"])
def test_a_tapes_private_buffers_are_touched_by_nobody_else(model: str, restored: bool, scripts: PageScripts) -> None:
    lengths = [1, 2, 31, 32, 63, 64, 100]
    found = scripts.run("steps", "private_buffers", model, model=model, lengths=lengths, restored=restored)
    # A restored tape has no captured session, and few buffers: what is stored is the tape that is played.
    assert found["sessions"] == [not restored] * 2
    assert found["private"] > (0 if restored else 5)
    assert found["bound"] > 20
    assert found["with_eager"] == [], "an eager run binds buffers of a tape"
    assert found["with_another_tape"] == [], "two tapes share buffers"


@pytest.mark.extended
@pytest.mark.parametrize("model", ["nano-llama", "nano-copies"])
def test_recording_runs_nothing_although_ort_executes_a_capture_twice(model: str, scripts: PageScripts) -> None:
    found = scripts.run("steps", "recording", model, model=model)
    assert found["kinds"]["dispatch"] > 20
    assert found["submits"] == 0
    assert all(found["unchanged"]), "the recorded run wrote logits or caches"


def fused_operations(passes: dict[str, str]) -> tuple[int, int, int]:
    """Operations that were recorded, clears left out; that are played; and that are played as recorded."""
    said = re.fullmatch(r"(\d+) operations became (\d+), (\d+) of them as recorded", passes["fused"])
    assert said, passes
    recorded, played, kept = map(int, said.groups())
    return recorded, played, kept


def check(step: dict[str, Any]) -> None:
    length = step["length"]
    assert (step["capture"], step["note"]) == ("tape", None), length
    assert step["input"] == step["first"], f"at {length} the pick is not the next step's input"
    assert step["caches"] <= TOLERANCE * max(1.0, step["largest"]), f"caches differ by {step['caches']} at {length}"
    assert step["elsewhere"] == 0, f"the step at {length} changed the caches of other positions"
    assert all(step["wrote"]), f"the tape wrote no cache at {length}"
    assert step["logits"] <= TOLERANCE * max(1.0, step["largest"]), f"logits differ by {step['logits']} at {length}"
    assert step["tape_pick"] == step["eager_pick"], length
