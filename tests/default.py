"""What `python3 build.py test` runs: all unit tests but those of LEFT_OUT, and the browser tests of SMOKE. `--all` runs
the others, too. CONTRIBUTING.md says how they were chosen."""

from __future__ import annotations

__all__ = ["has_default", "is_default"]

SMOKE: frozenset[str] = frozenset()
"""Of tests/browser: files, or tests as FILE::TEST or FILE::TEST[CASE]; the names without `test_` and `.py`."""
LEFT_OUT: frozenset[str] = frozenset()
"""Of tests/unit, likewise."""


def is_default(nodeid: str) -> bool:
    """Whether the default runs this test, which is not extended."""
    names = _names(nodeid)
    return not names & LEFT_OUT if nodeid.startswith("tests/unit/") else bool(names & SMOKE)


def has_default(file: str) -> bool:
    """Whether the default runs a test of this file, a path below the repository's root."""
    (name,) = _names(file)
    if file.startswith("tests/unit/"):
        return name not in LEFT_OUT
    return any(test.partition("::")[0] == name for test in SMOKE)


def _names(nodeid: str) -> set[str]:
    """The short names of a test's file, of the test, and of its case."""
    file, colons, test = nodeid.rpartition("/")[2].partition("::")
    name = file.removeprefix("test_").removesuffix(".py")
    return {name, f"{name}{colons}{test.partition('[')[0]}", f"{name}{colons}{test}"}
