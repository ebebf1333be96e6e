"""Measures of decode steps: what they tell, what they refuse, and that they leave no trace."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 7, 8, 9]
BEFORE, AFTER = 6, 12
ROUNDED = 0.1
"""Milliseconds by which a browser may round the GPU's time stamps."""
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "random_seed": 7},
}


def amid(scripts: PageScripts, model: str, **options: Any) -> dict[str, Any]:
    """Three bursts of 3 are read and two more are under way when it is measured."""
    found: dict[str, Any] = scripts.run(
        "measuring", "amid", model, model=model, prompt=PROMPT, before=BEFORE, after=AFTER, run_ahead=3, **options
    )
    return found


@pytest.fixture(scope="module", params=["nano-llama", "nano-copies"])
def measured(request: pytest.FixtureRequest, installed_scripts: PageScripts) -> tuple[str, dict[str, Any]]:
    """A model whose tape is one pass, and one whose copies divide it into several."""
    return request.param, amid(installed_scripts, request.param, **SEARCHES["greedy"])


@pytest.mark.one_in(2)
def test_generation_goes_on_as_if_nothing_had_been_measured(measured: tuple[str, dict[str, Any]]) -> None:
    model, found = measured
    assert found["times"]["kinds"].count("copy") == 0 or model == "nano-copies"
    assert found["ahead"] > 0, "tokens computed ahead are kept, too"
    assert found["left"] == [], "memory of the measures"
    assert found["changed"] == [], "state of the sequence"
    assert found["measured"] == found["alone"]
    assert found["measured"]["ids"] == oracle.greedy(FIXTURES / model, PROMPT, BEFORE + AFTER)


def test_sampling_goes_on_as_if_nothing_had_been_measured(scripts: PageScripts) -> None:
    found = amid(scripts, "nano-llama", **SEARCHES["sampled"])
    assert found["measured"] == found["alone"]


@pytest.mark.one_in(2)
def test_a_steps_gpu_time_is_about_the_wall_time(measured: tuple[str, dict[str, Any]]) -> None:
    times = measured[1]["times"]
    found = times["wall"]["steps"]
    assert len(found) % 5 == 0
    assert 10 <= len(found) <= 50
    wall = found[-5:]
    # In no submit of four steps is the GPU at work for longer than from there to the result, so their median is not.
    assert 4 * times["step"] <= median(wall) + ROUNDED, times
    # Only a busy machine lets the host wait for long besides.
    assert 0.1 * min(wall) < 4 * times["step"], times


@pytest.mark.one_in(2)
def test_a_replays_time_goes_from_its_first_ids_to_its_last(measured: tuple[str, dict[str, Any]]) -> None:
    times = measured[1]["times"]
    assert len(times["readable"]) == 3
    (begin, late_begin), _, (end, late_end) = times["readable"]
    # Bursts of two; the first one's ids are there when it begins.
    assert end - late_begin <= 4 * times["replay"] <= late_end - begin, times


@pytest.mark.one_in(2)
def test_every_dispatch_is_timed_and_named(measured: tuple[str, dict[str, Any]]) -> None:
    times = measured[1]["times"]
    dispatches = [index for index, kind in enumerate(times["kinds"]) if kind not in ("copy", "clear")]
    sampler = [len(times["kinds"]), len(times["kinds"]) + 1]
    assert [index for index, _, _ in times["operations"]] == dispatches + sampler
    labels = [label for _, label, _ in times["operations"]]
    assert labels[-2:] == ["sampler blockMax 512 false", "sampler greedy 512 false"]
    assert any("matvec" in label or "input_b" in label for label in labels), labels
    assert all(label.strip("-> ") for label in labels), labels
    spent = [microseconds for _, _, microseconds in times["operations"]]
    assert all(microseconds >= 0 for microseconds in spent)
    wall = times["wall"]["operations"]
    assert len(wall) == 2
    # A median of two is their mean.
    assert 0.1 * min(wall) < sum(spent) / 1000 <= sum(wall) / 2 + ROUNDED, times


def test_what_cannot_be_measured_is_refused(scripts: PageScripts) -> None:
    found = scripts.run("measuring", "refused", "nano-llama", model="nano-llama", prompt=PROMPT)
    off = "the decode steps of this generator run with capture 'off'; only steps of a tape can be timed: "
    assert found["off"] == [off + "load the model on WebGPU with capture='tape'"] * 3
    assert found["no token"] == ["no token was generated since the sequence was last changed; generate one first"]
    assert found["rewound"] == found["no token"]
    # 245 of 256 positions are filled: the prompt's 244 and the first token's, with no burst under way behind them.
    assert found["range"] == [
        "steps is 0; it must be from 1 to 11 here: raise max_length for more",
        "steps is 100; it must be from 1 to 11 here: raise max_length for more",
        "repeats is 0; it must be from 1 to 1000 here: the median settles long before",
        "picks is 65; it must be from 1 to 64 here: bursts are no longer",
        "steps is 4; it must be from 5 to 11 here: raise max_length for more",
        "steps is 100; it must be from 5 to 11 here: raise max_length for more",
    ]
    assert found["at the end"] == [
        "0 more tokens fit into the KV cache of 256 positions; this needs 1: rewind_to and generate one, or raise "
        "max_length"
    ]


def test_what_python_does_between_tokens_is_pythons_time(scripts: PageScripts) -> None:
    pause, count = 20, 21
    found = scripts.run(
        "measuring", "shares", "nano-llama", model="nano-llama", prompt=PROMPT, count=count, pause=pause
    )
    # The pauses after the last burst's ids are not over yet.
    assert (count - 4) * pause <= found["python"], found
    assert 0 < found["javascript"] <= found["submitting"], found
    assert found["python"] + found["javascript"] + found["waiting"] <= found["all"], found
