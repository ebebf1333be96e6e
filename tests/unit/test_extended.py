"""Which tests run by default, and which only with --extended or by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buildtools import ROOT

CONFTEST = """
from tests.extended import ALL, DEFAULT, EXTENDED, leave_out

def pytest_addoption(parser):
    for option in (ALL, DEFAULT, EXTENDED):
        parser.addoption(option, action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "extended")
    config.addinivalue_line("markers", "one_in(n)")

def pytest_collection_modifyitems(config, items):
    leave_out(config, items)
"""
TESTS = """
import pytest

@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", range(7))
def test_sampled(case): pass

@pytest.mark.extended
def test_slow(): pass

@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.extended), 1, 2, 3])
def test_both(case): pass

@pytest.mark.one_in
@pytest.mark.parametrize("case", range(9))
def test_first(case): pass
"""
SAMPLED = ["test_sampled[0]", "test_sampled[3]", "test_sampled[6]"]
USUAL = [*SAMPLED, "test_both[1]", "test_both[3]", "test_first[0]"]
ALL = [*(f"test_sampled[{n}]" for n in range(7)), "test_slow", *(f"test_both[{n}]" for n in range(4))]
ALL += [f"test_first[{n}]" for n in range(9)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], USUAL),
        (["--extended"], ALL),
        (["test_it.py::test_slow"], ["test_slow"]),
        (["test_it.py::test_sampled[4]"], ["test_sampled[4]"]),
        (["test_it.py::test_sampled", "-m", "not extended"], SAMPLED),
    ],
)
def test_one_case_in_n_runs_by_default(tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    found = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert found == expected, done.stdout + done.stderr
