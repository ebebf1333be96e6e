"""Prefill runs from tapes: the ids and caches of eager runs, where a prompt has runs of their length and where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.graph.onnx_pb2 import ModelProto
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts

pytestmark = pytest.mark.own_page

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHUNK = 64
"""The chunk on the software adapter; its half and its quarter may have tapes as well."""


def prompt_of(count: int) -> list[int]:
    return [(37 * i + 11) % 509 for i in range(count)]


def in_int8(model: ModelProto) -> None:
    """Allow activations in int8."""
    for node in model.graph.node:
        for item in node.attribute:
            if node.op_type == "MatMulNBits" and item.name == "accuracy_level":
                item.i = 4


@pytest.mark.one_in(4)
@pytest.mark.parametrize("count", [CHUNK, 2 * CHUNK - 8, 20, 5])
def test_ids_are_the_oracles(count: int, scripts: PageScripts) -> None:
    """Prompts of one whole run, of a run that overlaps the one before, and of short runs and decode steps."""
    prompt = prompt_of(count)
    wanted = oracle.greedy(FIXTURES / "nano-llama", prompt, 8)
    found = scripts.run("prefilling", "again", "nano-llama", model="nano-llama", prompt=prompt, count=8, times=3)
    assert [run["ids"] for run in found] == [wanted] * 3, found[-1]["report"]
    assert found[-1]["eager"] == 0, found[-1]


@pytest.mark.extended
def test_products_in_int8_are_near_the_eager_ones(scripts: PageScripts, variants: Variants) -> None:
    model = variants.graph("int8", in_int8)
    for past in (0, 5):
        found = scripts.run(
            "prefilling", "apart", model, model=model, prompt=prompt_of(2 * CHUNK), past=prompt_of(past)
        )
        assert found["lengths"] == [CHUNK], found["report"]
        for difference, largest in zip(found["differences"], found["largest"], strict=True):
            assert 0 < difference <= 0.125 * largest, found


@pytest.mark.extended
def test_a_tape_that_fails_its_check_is_not_used(scripts: PageScripts, variants: Variants) -> None:
    prompt = prompt_of(CHUNK)
    model = variants.graph("refused", in_int8)
    found = scripts.run("prefilling", "refused", model, model=model, prompt=prompt, count=8)
    assert "differs from an eager one" in found["report"]
    assert found["eager"] == 1
    assert found["ids"] == oracle.greedy(FIXTURES / "nano-llama", prompt, 8)
    assert found["sessions"] == 0, "the captured session is kept"


@pytest.mark.extended
def test_it_is_left_out_where_it_is_not_asked_for(scripts: PageScripts) -> None:
    report = scripts.run("prefilling", "left_out", "nano-llama", model="nano-llama", prompt=prompt_of(CHUNK))
    assert "prefill" not in report


@pytest.mark.extended
def test_a_wait_that_is_cancelled_while_a_tape_is_made_harms_nothing(scripts: PageScripts) -> None:
    prompt, short = prompt_of(CHUNK), prompt_of(7)
    at = {"record": 1, "make_tape": 1, "compare": 2}
    found = scripts.run(
        "prefilling", "cancelled", "nano-llama", model="nano-llama", prompt=prompt, at=at, short=short, count=6
    )
    wanted = oracle.greedy(FIXTURES / "nano-llama", short, 6), oracle.greedy(FIXTURES / "nano-llama", prompt, 6)
    for name, ids in zip(at, found, strict=True):
        assert ids == [wanted[0], wanted[1], wanted[1]], name


@pytest.mark.extended
def test_a_model_that_is_closed_meanwhile_leaves_nothing(scripts: PageScripts) -> None:
    at = [["decode", "record"], ["prefill", "compare"]]
    found = scripts.run("prefilling", "closed", "nano-llama", model="nano-llama", prompt=prompt_of(CHUNK), at=at)
    assert found == [[*where, "ClosedError", {}] for where in at]


@pytest.mark.extended
@pytest.mark.parametrize("at", ["record", "make_tape", "create_buffers"])
def test_without_memory_for_a_tape_the_prompt_runs_without_one(at: str, scripts: PageScripts) -> None:
    prompt = prompt_of(CHUNK)
    found = scripts.run("prefilling", "without_room", "nano-llama", model="nano-llama", prompt=prompt, count=6, at=at)
    assert found["ids"] == [oracle.greedy(FIXTURES / "nano-llama", prompt, 6)] * 3
    assert found["report"].startswith(f"{CHUNK} positions: not used: there is no memory for "), found["report"]
    assert found["healthy"]
    before, after = found["left"]
    # onnxruntime-web drops small buffers of a session without destroying them; the rest is a hundred times as much.
    assert abs(after.pop("scratch") - before.pop("scratch")) <= 1024
    assert after == before, "something of the tape is left"
    assert any("prefill runs from a tape: there is no memory for " in text for text in found["warned"])
    assert found["counted"], "the step down is not counted"
