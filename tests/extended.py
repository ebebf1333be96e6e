"""Which tests run: the default's (tests/default.py), all, or the extended ones of browsers, too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.default import is_default

__all__ = ["ALL", "DEFAULT", "EXTENDED", "OnePage", "leave_out", "pairwise", "shares_a_page"]

ALL = "--all"
DEFAULT = "--default"
EXTENDED = "--extended"
ARGUMENT = re.compile(r"\b(scripts: PageScripts|harness: Harness)\b")
"""A test that runs in the harness page takes one of these."""


class OnePage(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests that share a page to one process, so that there is one such page, and the other files to any."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the page" if shares_a_page(self.config.rootpath / file) else file


@cache
def shares_a_page(test: Path) -> bool:
    """Whether a file has tests in the harness page."""
    return test.parent.name == "browser" and ARGUMENT.search(test.read_text(encoding="utf-8")) is not None


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take tests marked extended out of `items`, and of those marked one_in(n) all but one in n, without n all but the
    first, unless --extended or a test's name requests them without `-m`. With --all unit tests stay: theirs take two
    minutes. With --default take out what that leaves out, too."""
    named = any("::" in argument for argument in config.args) and not config.getoption("markexpr")
    if config.getoption(EXTENDED) or named:
        return
    every, default = config.getoption(ALL), config.getoption(DEFAULT)
    seen: Counter[str] = Counter()
    usual: list[pytest.Item] = []
    extended: list[pytest.Item] = []
    for item in items:
        left_out = item.get_closest_marker("extended") is not None
        if not left_out and (sample := item.get_closest_marker("one_in")):
            function = item.nodeid.partition("[")[0]
            left_out = seen[function] % (sample.args or [len(items)])[0] > 0
            seen[function] += 1
        left_out = left_out and not (every and item.nodeid.startswith("tests/unit/"))
        left_out = left_out or (default and not is_default(item.nodeid))
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
