"""Speculation on WebGPU: drafts found on the device and verified in one taped step give the tokens of steps of one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts
from tests.unit.test_speculation import FEW, PROMPT

CASES: list[dict[str, Any]] = [
    {"max_length": 100},
    {"max_length": 100, "do_sample": True, "temperature": 0.01, "random_seed": 3},
    {"max_length": 90, "do_sample": True, "temperature": 0.05, "top_k": 4, "top_p": 0.9, "random_seed": 5},
    {"max_length": 90, "frequency_penalty": 0.01, "repetition_penalty": 1.0001, "no_repeat_ngram_size": 7},
    {"max_length": 90, "min_length": 60, "eos": [43]},
]
DRAFTING: list[dict[str, Any]] = [
    {"ngram_size": 2, "max_draft_tokens": 4, "always": True},
    {"ngram_size": 3, "max_draft_tokens": 8, "chained": False, "always": True},
]


@pytest.mark.parametrize("model", ["nano-llama", "nano-qwen3"])
def test_drafts_verified_on_the_gpu_change_no_token(model: str, scripts: PageScripts) -> None:
    cases = [{**case, "logit_bias": FEW} for case in CASES[: 5 if model == "nano-llama" else 1]]
    arguments = {"model": model, "prompt": PROMPT, "cases": cases, "drafting": DRAFTING}
    for case, result in zip(cases, scripts.run("speculating", "generated", model, **arguments), strict=True):
        for drafted in result["drafted"]:
            stats = drafted["stats"]
            assert drafted["sequences"] == result["plain"]["sequences"], case
            assert not drafted["stepped down"]
            assert "positions" in drafted["said"]
            assert stats["rounds"]
            assert stats["emitted"] == stats["accepted"] + stats["rounds"]
        if not case.get("do_sample"):
            assert result["drafted"][0]["stats"]["accepted"], "where nothing is accepted this shows little"
            assert result["drafted"][0]["steps"] < result["plain"]["steps"]
