"""Tests that are left out unless `--extended` or their own name asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["EXTENDED", "leave_out", "one_in", "pairwise"]

EXTENDED = "--extended"


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take tests marked extended out of `items`, unless --extended or a test's name requests them."""
    named = any("::" in argument for argument in config.args)
    if not config.getoption(EXTENDED) and not named:
        extended = [item for item in items if item.get_closest_marker("extended")]
        config.hook.pytest_deselected(items=extended)
        items[:] = [item for item in items if item not in extended]


def one_in(every: int, cases: Iterable[Any]) -> list[Any]:
    """`cases` for `parametrize`: one in `every`, from the first on, runs each time; the others are extended."""
    values = [case if type(case) is tuple else (case,) for case in cases]
    return [pytest.param(*value, marks=[pytest.mark.extended] if i % every else []) for i, value in enumerate(values)]


def pairwise(cases: Sequence[tuple[Any, ...]], rare: Sequence[tuple[Any, ...]], choices: Sequence[Any]) -> list[Any]:
    """Each of the cases with each of the choices, for `parametrize`: `cases` take turns with the choices each time; the
    other pairs and all of `rare` are extended."""
    usual = [(*case, choices[i % len(choices)]) for i, case in enumerate(cases)]
    others = [(*case, choice) for case in (*cases, *rare) for choice in choices]
    left = [pytest.param(*case, marks=[pytest.mark.extended]) for case in others if case not in usual]
    return [*usual, *left]
