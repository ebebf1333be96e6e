"""Several rows of a generator in one taped step: the oracle's sequences, in as many steps as there are tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PAD = 2
PROMPTS = [[1, 4, 3, 4, 9, 8], [5, 6, PAD, PAD, PAD, PAD], [PAD, 7, 8, PAD, PAD, PAD]]
"""Rows of 6, 2 and 3 tokens, padded as a batch is."""


def test_rows_advance_in_one_step(scripts: PageScripts) -> None:
    free = oracle.rows(LLAMA, PROMPTS, max_length=24)
    eos = [free.picked[1][1], free.picked[9][0]]
    cases: list[dict[str, Any]] = [
        {"max_length": 24},
        {"max_length": 24, "eos": eos},
        {"max_length": 24, "eos": eos, "min_length": 12},
        {"max_length": 24, "repetition_penalty": 1.4},
        {"max_length": 20, "num_beams": 3},
    ]
    found = scripts.run("rows", "generated", "nano-llama", model="nano-llama", prompts=PROMPTS, cases=cases)
    for case, result in zip(cases, found, strict=True):
        wanted = oracle.rows(LLAMA, PROMPTS, **case)
        assert result["sequences"] == wanted.sequences, case
        assert "rows" in result["said"], result["stepped down"]
        assert not result["stepped down"]
        assert result["counted"] <= result["tokens"] + 4, "a step is of all rows"


def test_each_row_draws_what_it_draws_alone(scripts: PageScripts) -> None:
    case = {"max_length": 20, "do_sample": True, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "random_seed": 11}
    arguments = {"model": "nano-llama", "prompts": PROMPTS, "cases": [case]}
    [joint] = scripts.run("rows", "generated", "nano-llama", **arguments)
    [apart] = scripts.run("rows", "generated", "nano-llama", joint=False, **arguments)
    assert joint["sequences"] == apart["sequences"]
    assert apart["said"] == ""
