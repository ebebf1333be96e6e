"""Tests that are left out unless `--extended` or their own name asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["EXTENDED", "leave_out", "one_in"]

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
