"""The cost of decode steps after recording, by Capstan's counters and counted again at WebGPU's prototypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
TOKENS = 21
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "random_seed": 7},
}
IN_FLIGHT = 2
"""Bursts that may be under way at once."""


def run(scripts: PageScripts, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = scripts.run(
        "counting", "decode_steps", "nano-llama", model="nano-llama", prompt=PROMPT, count=TOKENS, **options
    )
    assert (found["capture"], found["note"]) == ("tape", None)
    for name, count in found["seen"].items():
        assert found["counters"][name] == count, f"{name}: Capstan counted {found['counters'][name]}, the probe {count}"
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize("run_ahead", [1, 3, 8, None], ids=["K1", "K3", "K8", "adaptive"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_run_to_max_length_creates_and_writes_nothing(
    search: str, run_ahead: int | None, scripts: PageScripts
) -> None:
    found = run(scripts, run_ahead=run_ahead, **SEARCHES[search])
    counters, bursts = found["counters"], found["bursts"]
    assert counters["create_buffer"] == counters["create_bind_group"] == counters["write_buffer"] == 0
    assert counters["submits"] == counters["readbacks"] == counters["python_crossings"] == len(bursts)
    assert counters["readback_bytes"] == 4 * sum(bursts) == 4 * TOKENS, "4 bytes a token, none past max_length"
    assert counters["steps"] == TOKENS - 1, "the first token needs the prefill only"
    if run_ahead is not None:
        full, rest = divmod(TOKENS - 1, run_ahead)
        assert bursts == [1] + [run_ahead] * full + [rest] * bool(rest)
    if search == "greedy":
        assert found["ids"] == oracle.greedy(LLAMA, PROMPT, TOKENS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run_ahead", [1, 3, 8], ids=["K1", "K3", "K8"])
def test_stopping_early_wastes_at_most_the_bursts_under_way(run_ahead: int, scripts: PageScripts) -> None:
    taken = 7
    found = run(scripts, run_ahead=run_ahead, stop_after=taken)
    counters, bursts = found["counters"], found["bursts"]
    assert counters["create_buffer"] == counters["create_bind_group"] == counters["write_buffer"] == 0
    assert counters["submits"] == len(bursts)
    assert len(bursts) - counters["python_crossings"] < IN_FLIGHT, "what Python has not been told yet"
    assert counters["readback_bytes"] == 4 * sum(bursts)
    assert taken <= sum(bursts) < taken + IN_FLIGHT * run_ahead


@pytest.mark.extended
@pytest.mark.parametrize("passes", [("clears",), ("clears", "direct")], ids=["recorded", "direct"])
def test_a_tape_of_recorded_kernels_costs_no_more(passes: tuple[str, ...], scripts: PageScripts) -> None:
    found = run(scripts, run_ahead=3, passes=passes)
    counters = found["counters"]
    assert counters["create_buffer"] == counters["create_bind_group"] == counters["write_buffer"] == 0
    assert counters["submits"] == counters["readbacks"] == counters["python_crossings"] == len(found["bursts"])
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, TOKENS)
