"""Beams that the GPU chooses are those that the host chooses, and the oracle's, in bursts of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PAD = 2
PROMPTS = [[1, 4, 3, 4, 9, 8], [5, 6, PAD, PAD, PAD, PAD]]
# Many ids end a sequence, so that hypotheses of many lengths compete.
EOS = [180, 178, 91, 120, 429, 78, 243, 20, 413, 342, 109, 33, 118, 174]
MANY = list(range(3, 500, 9))
CASES: list[dict[str, Any]] = [
    {"num_beams": 2, "max_length": 60},
    {"num_beams": 4, "max_length": 40, "num_return_sequences": 4},
    {"num_beams": 5, "max_length": 24, "num_return_sequences": 2, "eos": EOS[:2]},
    {"num_beams": 3, "max_length": 24, "num_return_sequences": 3, "eos": EOS},
    {"num_beams": 3, "max_length": 24, "num_return_sequences": 3, "eos": EOS, "length_penalty": -2.0},
    {"num_beams": 3, "max_length": 24, "eos": EOS, "length_penalty": 4.0, "early_stopping": False},
    {"num_beams": 3, "max_length": 24, "eos": EOS, "length_penalty": 0.0, "early_stopping": False},
    {"num_beams": 4, "max_length": 24, "num_return_sequences": 4, "eos": MANY},
]


def case(prompts: int, chosen: list[int], name: str, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(PROMPTS[:prompts], [CASES[place] for place in chosen], marks=marks, id=name)


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("prompts", "chosen"),
    [
        # A number of rows more is a step more to record.
        case(1, [3, 4, 5, 6], "one prompt"),
        case(2, [3, 4, 5], "two prompts"),
        case(1, [0, 3, 4, 5, 6, 7], "one prompt, all ends", pytest.mark.extended),
        case(1, [1, 2], "one prompt, more beams", pytest.mark.extended),
        case(2, [0, 1, 2, 6, 7], "two prompts, more beams", pytest.mark.extended),
    ],
)
def test_the_gpu_chooses_what_the_host_chooses(
    prompts: list[list[int]], chosen: list[dict[str, Any]], scripts: PageScripts
) -> None:
    cases = [{**case, "run_ahead": 5} for case in chosen]
    run: dict[str, Any] = {"model": "nano-llama", "prompts": prompts, "cases": cases}
    here = scripts.run("beams", "searched", "nano-llama", **run, by_host=True)
    there = scripts.run("beams", "searched", "nano-llama", **run)
    moved = 0
    for case, host, gpu in zip(chosen, here, there, strict=True):
        assert (gpu["choices"], gpu["tokens"]) == (host["choices"], host["tokens"]), case
        assert gpu["sequences"] == host["sequences"], case
        assert (gpu["stepped down"], "beams" in gpu["said"]) == ([], True)
        assert gpu["counters"]["readbacks"] < host["counters"]["readbacks"], case
        moved += sum([parent for parent, _ in choice] != list(range(len(choice))) for choice in gpu["choices"])
        if len(prompts) == 1:
            asked = {"num_return_sequences": 1, **case}
            wanted = oracle.rows(LLAMA, prompts, returned=asked["num_return_sequences"], **asked)
            assert gpu["sequences"] == wanted.sequences, case
    assert moved > 50, "beams read the caches of others"


def test_steps_are_read_a_burst_at_a_time(scripts: PageScripts) -> None:
    run: dict[str, Any] = {"model": "nano-llama", "prompts": PROMPTS[:1]}
    cases = [{"num_beams": 4, "max_length": 62, "run_ahead": 8}] * 2
    # The first search makes what the second uses.
    _, found = scripts.run("beams", "searched", "nano-llama", **run, cases=cases)
    counters = found["counters"]
    assert counters["steps"] == 56 - 1, "the last tokens are not run"
    # The first choice is a burst of its own.
    assert counters["readbacks"] == counters["submits"] == 1 + 7, counters
    assert counters["create_buffer"] == counters["create_bind_group"] == 0, counters


def test_where_a_stage_edits_logits_the_host_chooses(scripts: PageScripts) -> None:
    cases: list[dict[str, Any]] = [{"num_beams": 3, "max_length": 20, "repetition_penalty": 1.3}]
    [found] = scripts.run("beams", "searched", "nano-llama", model="nano-llama", prompts=PROMPTS[:1], cases=cases)
    assert found["sequences"] == oracle.rows(LLAMA, PROMPTS[:1], **cases[0]).sequences
    assert found["stepped down"] == []
    assert found["counters"]["readbacks"] >= 3 * 14


def test_searches_that_are_asked_for_logits_or_rewound_go_on(scripts: PageScripts) -> None:
    options: dict[str, Any] = {"num_beams": 4, "max_length": 36}
    found = scripts.run(
        "beams", "interrupted", "nano-llama", model="nano-llama", prompt=PROMPTS[0], after=8, run_ahead=4, **options
    )
    wanted = oracle.rows(LLAMA, PROMPTS[:1], **options).sequences[0]
    assert (found["asked"], found["rewound"]) == (wanted, wanted)
    greedy = oracle.greedy(LLAMA, PROMPTS[0], 8)
    assert found["batch"] == 4 * [[*PROMPTS[0], *greedy]]


def test_a_search_goes_on_behind_waits_that_were_cancelled(scripts: PageScripts) -> None:
    options: dict[str, Any] = {"num_beams": 4, "max_length": 36}
    run = {"model": "nano-llama", "prompt": PROMPTS[0], "run_ahead": 2, **options}
    found = scripts.run("beams", "cancelled", "nano-llama", **run)
    assert found["cancelled"] > 4
    assert found["sequence"] == oracle.rows(LLAMA, PROMPTS[:1], **options).sequences[0]


@pytest.mark.extended
def test_a_search_goes_on_behind_a_lost_device(scripts: PageScripts) -> None:
    options: dict[str, Any] = {"num_beams": 4, "max_length": 20, "num_return_sequences": 4}
    run = {"model": "nano-llama", "prompt": PROMPTS[0], "run_ahead": 4, **options}
    found = scripts.run("beams", "lost", "nano-llama", **run, after=2)
    assert found["recoveries"] == 1
    assert found["sequences"] == oracle.rows(LLAMA, PROMPTS[:1], returned=4, **options).sequences
