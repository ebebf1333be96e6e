"""What a model takes is known beforehand, and its pools can be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.extended import one_in

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]


@pytest.mark.parametrize("name", one_in(2, ["nano-llama", "nano-qwen2"]))
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
        assert found[name].startswith("BufferMismatchError: "), found[name]
    assert "expected at least" in found["small"]
    assert "WebGPU_Staging" in found["staging"]
    assert "wasm" in found["foreign"]
    assert "banana" in found["unknown"]
    assert "'logits'" in found["missing"]
    assert found["left"] == "nothing"
    assert found["ids"] == str(oracle.greedy(LLAMA, PROMPT, 4))
