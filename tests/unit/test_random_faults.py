"""Random faults are small changes of code, the same for a seed, and the matrix tells which test files find them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from buildtools import ROOT
from tests.mutations.matrix import DATA, shares
from tests.mutations.sampling import RandomFault, python_faults, text_faults

PYTHON = b'''"""Of these 3 nothing changes."""

from typing import Protocol

__all__ = ["total"]


class Shape(Protocol):
    size: int = 3


def total(numbers: list[int], least: int = 0) -> int:
    """The sum: 3 and more."""
    kept = []
    for n in numbers:
        if n > least and not skipped(n, "x"):
            kept.append(n * 2)
    return sum(kept)
'''
CHANGED = {
    ("comparison", ">", ">="),
    ("logic", "and", "or"),
    ("logic", 'not skipped(n, "x")', 'skipped(n, "x")'),
    ("arguments", 'n, "x"', '"x", n'),
    ("string", '"x"', "(\"x\" + 'x')"),
    ("condition", 'n > least and not skipped(n, "x")', '(not (n > least and not skipped(n, "x")))'),
    ("statement", "kept.append(n * 2)", "pass"),
    ("arithmetic", "*", "+"),
    ("number", "2", "3"),
    ("number", "0", "1"),
    ("result", "return sum(kept)", "return None"),
}
WGSL = b"""// a < b
fn total(n: u32) -> u32 {
  if (n < 3u && ready) {
    store(n);
  }
  return select("a < b", n + 1u, true);
}
"""


def changes(faults: list[RandomFault], source: bytes) -> set[tuple[str, str, str]]:
    return {(fault.kind, source[fault.start : fault.end].decode(), fault.instead) for fault in faults}


def test_changes_of_python_are_those_of_code_that_runs() -> None:
    assert changes(python_faults("m.py", PYTHON), PYTHON) == CHANGED


def test_changes_of_wgsl_are_outside_of_comments_and_texts() -> None:
    assert changes(text_faults("m.wgsl", WGSL), WGSL) == {
        ("comparison", "<", "<="),
        ("logic", "&&", "||"),
        ("number", "3", "4"),
        ("number", "1", "2"),
        ("arithmetic", "+", "-"),
        ("flag", "true", "false"),
        ("statement", "store(n);", ";"),
    }


MATRIX = """
import sys
from pathlib import Path
import pytest
from tests.mutations import matrix

matrix.PACKAGE = "product"
tried = matrix.Matrix(Path("out.json"), Path("reached.json"), 9, 0, 1, "abc")
sys.exit(pytest.main(["-q", "tests/unit"], plugins=[tried]))
"""


def test_the_matrix_has_the_tests_that_found_a_fault_and_those_that_did_not(tmp_path: Path) -> None:
    package, tests = tmp_path / "product", tmp_path / "tests/unit"
    package.mkdir(parents=True)
    tests.mkdir(parents=True)
    (package / "sums.py").write_text("def twice(n):\n    return n + n\n\n\ndef never(n):\n    return n - 1\n")
    for name, line in (("exact", "assert twice(2) == 4"), ("lax", "twice(2)"), ("red", "assert twice(2) == 5")):
        (tests / f"test_{name}.py").write_text(f"from product.sums import twice\n\ndef test_sum():\n    {line}\n")
    command = [sys.executable, "-c", MATRIX]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": f".:{ROOT}:{ROOT / 'py_src'}"}, capture_output=True, text=True
    )
    assert (tmp_path / "out.json").exists(), done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    told = {(fault["line"], fault["instead"]): fault for fault in found["faults"]}
    assert found["commit"] == "abc"
    assert set(found["seconds"]) == {"exact", "lax"}
    for instead in ("-", "return None"):
        assert list(told[2, instead]["found"]) == ["exact::test_sum"]
        assert list(told[2, instead]["passed"]) == ["lax"]
        assert told[6, instead if instead != "-" else "+"]["reached"] == 0


def test_the_shares_are_those_of_the_data() -> None:
    lines = shares(json.loads(DATA.read_text(encoding="utf-8")))
    assert lines[0].startswith("catalogue: ")
    (python,) = [line for line in lines if line.startswith("random, py: ")]
    assert float(python.rpartition("(")[2].partition("%")[0]) >= 90
