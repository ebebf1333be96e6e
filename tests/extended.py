"""Tests that are left out unless `--extended` or their own name asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["EXTENDED", "leave_out", "pairwise"]

EXTENDED = "--extended"


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take tests marked extended out of `items`, and of those marked one_in(n) all but one in n, without n all but the
    first, unless --extended or a test's name requests them without `-m`."""
    named = any("::" in argument for argument in config.args) and not config.getoption("markexpr")
    if config.getoption(EXTENDED) or named:
        return
    seen: Counter[str] = Counter()
    usual: list[pytest.Item] = []
    extended: list[pytest.Item] = []
    for item in items:
        left_out = item.get_closest_marker("extended") is not None
        if not left_out and (sample := item.get_closest_marker("one_in")):
            function = item.nodeid.partition("[")[0]
            left_out = seen[function] % (sample.args or [len(items)])[0] > 0
            seen[function] += 1
        (extended if left_out else usual).append(item)
    config.hook.pytest_deselected(items=extended)
    items[:] = usual


def pairwise(cases: Sequence[tuple[Any, ...]], rare: Sequence[tuple[Any, ...]], choices: Sequence[Any]) -> list[Any]:
    """Each of the cases with each of the choices, for `parametrize`: `cases` take turns with the choices each time; the
    other pairs and all of `rare` are extended."""
    usual = [(*case, choices[i % len(choices)]) for i, case in enumerate(cases)]
    others = [(*case, choice) for case in (*cases, *rare) for choice in choices]
    left = [pytest.param(*case, marks=[pytest.mark.extended]) for case in others if case not in usual]
    return [*usual, *left]
