"""Prefill runs that are measured to take long get shorter, stay so, and give the same ids. The bounds are far from any
time that a run could take, so that nothing here depends on the machine's pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [(7 * i + 3) % 500 for i in range(300)]
COUNT = 6


def paced(scripts: PageScripts, bound: str, times: int) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"model": "nano-llama", "prompt": PROMPT, "count": COUNT, "longest": 256}
    found: list[dict[str, Any]] = scripts.run("pacing", "paced", "nano-llama", bound=bound, times=times, **given)
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("bound", "runs"),
    [
        ("inf", [[256, 44]] * 3),
        ("1e9", [[256, 44]] * 3),
        ("1e-6", [[256, 44], [256, 44], [128, 128, 44], *[[64, 64, 64, 64, 44]] * 3]),
    ],
)
def test_runs_are_halved_over_the_bound_and_the_ids_are_the_oracles(
    bound: str, runs: list[list[int]], scripts: PageScripts
) -> None:
    found = paced(scripts, bound, len(runs))
    assert [each["runs"] for each in found] == runs, "the last prompt is another load's, which begins as settled"
    assert [each["ids"] for each in found] == [oracle.greedy(FIXTURES / "nano-llama", PROMPT, COUNT)] * len(runs)
