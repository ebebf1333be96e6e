"""`build.py check` tells each tool that failed, mypy too, which runs beside the others."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from buildtools.commands import check

PASSED = "check: all passed"


@pytest.mark.parametrize(
    ("tool", "told"),
    [("none", PASSED), ("mypy", "check: failed: mypy --strict"), ("ruff", "check: failed: ruff check")],
)
def test_each_tool_that_fails_is_told_with_its_words(
    tool: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    python, node = tmp_path / "python", tmp_path / "node"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"{tool}"*) echo "{tool} says no"; exit 1;; esac\n')
    node.write_text("#!/bin/sh\n")
    for program in (python, node):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(check, "venv_python", lambda: python)
    monkeypatch.setattr(check, "tables_in_step", dict)
    monkeypatch.setattr(check, "tracked_phrases", list)
    monkeypatch.setattr(check, "last_subjects", list)
    assert check.run(Namespace(fix=False)) == (told != PASSED)
    printed = capfd.readouterr()
    assert printed.err.splitlines()[-1].startswith(told)
    assert (f"{tool} says no" in printed.out + printed.err) == (told != PASSED)
