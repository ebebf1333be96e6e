"""A model's memory is known beforehand, and the caller can give its pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

pytestmark = pytest.mark.own_page

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen2"])
def test_what_is_asked_for_is_what_is_allocated(name: str, scripts: PageScripts) -> None:
    found = scripts.run("memory", "requirements", name, model=name, max_length=100)
    ledger, after = found["ledger"], found["after"]
    assert found["exact"] == [False, False, True, True]
    assert found["recorded"] >= found["before"]["scratch"], "recording took shorter runs than a prompt's"
    assert after["scratch"] == ledger["scratch"]
    for pool in ("weights", "io"):
        assert found["before"][pool] == after[pool] == ledger[pool]
    # State and ring share a buffer, in which they start at multiples of the span alignment.
    padding = ledger["persistent"] - after["persistent"]
    assert 0 <= padding < found["alignment"]["span_offset"]


def test_a_fit_is_told_without_allocating(scripts: PageScripts) -> None:
    found = scripts.run("memory", "plans", "nano-llama", model="nano-llama")
    assert found["good"]
    assert not found["poor"]
    assert "budget" in found["reason"]
    assert found["buffers"] == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("close_early", [False, True], ids=["closed after", "closed early"])
def test_a_generator_runs_in_buffers_of_the_callers(close_early: bool, scripts: PageScripts) -> None:
    found = scripts.run("memory", "given_pools", "nano-llama", model="nano-llama", count=12, close_early=close_early)
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 12)
    assert found["note"] == ["tape", None]
    before, held, left, end = found["user"]
    assert found["own"] == [0, 0], "the model allocated nothing of these pools"
    assert held == before, "the buffers live as long as the generator"
    assert left == (0 if close_early else before)
    assert end == 0


def test_buffers_that_cannot_be_used_are_refused(scripts: PageScripts) -> None:
    found = scripts.run("memory", "refused_pools", "nano-llama", model="nano-llama")
    for name in ("small", "staging", "foreign", "closed", "unknown", "missing"):
        kind = "MemoryTypeError" if name == "staging" else "BufferMismatchError"
        assert found[name].startswith(f"{kind}: "), found[name]
    assert "expected at least" in found["small"]
    assert "WebGPU_Staging" in found["staging"]
    assert "wasm" in found["foreign"]
    assert "banana" in found["unknown"]
    assert "'logits'" in found["missing"]
    assert found["left"] == "nothing"
    assert found["ids"] == str(oracle.greedy(LLAMA, PROMPT, 4))


PROMPTS = [[1, 4, 3, 4, 9, 8], [5, 6, 2, 2, 2, 2], [2, 7, 8, 2, 2, 2]]


@pytest.mark.extended
@pytest.mark.parametrize("choice", ["joint", "separate"])
@pytest.mark.parametrize(
    ("prompts", "search"),
    [(PROMPTS, {"max_length": 24}), (PROMPTS[:1], {"max_length": 20, "num_beams": 4})],
    ids=["a batch of 3", "4 beams"],
)
def test_rows_run_in_buffers_of_the_callers(
    prompts: list[list[int]], search: dict[str, Any], choice: str, scripts: PageScripts
) -> None:
    found = scripts.run(
        "pooling", "given_rows", "nano-llama", model="nano-llama", prompts=prompts, choice=choice, **search
    )
    wanted = oracle.rows(LLAMA, prompts, **search).sequences
    assert found["sequences"] == 3 * [wanted]
    assert (found["rows"], found["capture"]) == (choice, ["tape", None])
    assert found["early"][0] == 0
    assert found["early"][1].startswith("not yet known: ")
    assert found["scratch"]
    assert found["ledger"] == 4 * [{"persistent": 0, "io": 0, "tape scratch": 0}]
    assert all(found["own"].values()), "without pools the model allocates all of it"
    for asked in found["asked"]:
        beams = search.get("num_beams", 1)
        # Joint rows have a tape for the prompts and one for their steps; beams have one more.
        tapes = {"separate": len(wanted) * beams, "joint": 2 + (beams > 1)}[choice]
        assert "record" not in asked, "tapes over given buffers are the stored ones"
        assert asked["restore_tape"] == tapes
        assert asked["give_scratch"] == 2 * tapes, "given, and replaced"
    assert found["left"] == 0
    assert found["stepped down"] == []


@pytest.mark.extended
def test_prompts_run_from_tapes_over_given_buffers(scripts: PageScripts) -> None:
    prompt = [(37 * i + 11) % 509 for i in range(192)]
    prompts = [prompt, [*prompt[:191], 5]]
    run = {"model": "nano-llama", "prompts": prompts, "choice": "all", "max_length": 204, "turns": 2}
    found = scripts.run("pooling", "given_rows", "nano-llama", **run)
    assert found["sequences"] == 4 * [oracle.rows(LLAMA, prompts, max_length=204).sequences]
    assert found["ledger"] == 4 * [{"persistent": 0, "io": 0, "tape scratch": 0}]
    assert [asked.get("record", 0) for asked in found["asked"]] == [0, 0]
    assert [asked["restore_tape"] for asked in found["asked"]] == [3, 3], "a step, a step of rows, and a run of 64"
    assert (found["left"], found["stepped down"]) == (0, [])


@pytest.mark.extended
def test_prompts_that_share_runs_do_so_over_given_buffers_once_their_tape_is_stored(scripts: PageScripts) -> None:
    run = {"model": "nano-llama", "prompts": PROMPTS, "choice": "joint", "max_length": 28}
    for turns, tapes in ((1, 2), (2, 3)):
        found = scripts.run("pooling", "given_rows", "nano-llama", turns=turns, **run)
        assert found["sequences"] == (turns + 2) * [oracle.rows(LLAMA, PROMPTS, max_length=28).sequences]
        assert found["ledger"] == 4 * [{"persistent": 0, "io": 0, "tape scratch": 0}]
        assert ["record" in asked for asked in found["asked"]] == [False, False]
        assert [asked["restore_tape"] for asked in found["asked"]] == [tapes, tapes], turns
        assert (found["left"], found["stepped down"]) == (0, [])


@pytest.mark.extended
@pytest.mark.parametrize("close_early", [False, True], ids=["closed after", "closed early"])
def test_larger_buffers_are_used_and_those_closed_early_are_held(close_early: bool, scripts: PageScripts) -> None:
    run = {"model": "nano-llama", "prompts": PROMPTS, "choice": "joint", "max_length": 24}
    found = scripts.run("pooling", "given_rows", "nano-llama", more=64, close_early=close_early, **run)
    assert found["sequences"] == 3 * [oracle.rows(LLAMA, PROMPTS, max_length=24).sequences]
    assert "record" not in found["asked"][1], "the tapes over the larger buffers before were stored"
    assert (found["held"], found["left own"], found["stepped down"]) == ([], 0, [])


@pytest.mark.extended
@pytest.mark.parametrize("choice", ["joint", "separate"])
def test_buffers_that_rows_or_scratch_cannot_use_are_refused(choice: str, scripts: PageScripts) -> None:
    found = scripts.run("pooling", "refused", "nano-llama", model="nano-llama", choice=choice, prompts=PROMPTS)
    ids = found.pop("ids")
    assert found.pop("left") == {}, "each refusal leaves the ledger as it was"
    said = {
        "small": "expected at least",
        "misaligned": "expected an offset that is a multiple of 256, got 16",
        "staging": "WebGPU_Staging",
        "foreign": "wasm",
        "closed": "expected an open buffer, got a closed one",
        "unknown": "'banana'",
        "missing": "no buffer was given for",
        "twice": "were given the same bytes",
        "in another pool": "were given the same bytes",
        "of one sequence": "a buffer for",
        "in use": "of an open generator",
        "small scratch": "expected at least",
        "closed scratch": "got a closed one",
        "foreign scratch": "wasm",
        "staging scratch": "WebGPU_Staging",
        "missing scratch": "no buffer was given for 'tape scratch 0'",
        "onnxruntime's scratch": "'prefill scratch'",
        "scratch in use as a cache": "of an open generator",
        "replaced by small scratch": "expected at least",
        "replaced by closed scratch": "got a closed one",
        "replaced by the cache": "of an open generator",
        "scratch without a tape": "onnxruntime-web allocates its own, and capture is 'off'",
        "replaced without a tape": "onnxruntime-web allocates its own, and capture is 'off'",
        "scratch on wasm": "the wasm device takes none",
        "replaced on wasm": "the wasm device takes none",
        "persistent on wasm": "the wasm device takes none",
    }
    assert found.keys() == said.keys()
    for name, part in said.items():
        kind = "MemoryTypeError" if name.startswith("staging") else "BufferMismatchError"
        assert found[name].startswith(f"{kind}: "), (name, found[name])
        assert part in found[name], (name, found[name])
    assert ids == 2 * [oracle.rows(LLAMA, PROMPTS, max_length=24).sequences], "before, and in the same generator after"
