"""The default's tests are there, find nine of ten of the seeded faults, and leave none to the extended ones."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from buildtools import ROOT
from tests.default import LEFT_OUT, SMOKE, has_default, is_default
from tests.mutations.catalogue import MUTATIONS

ENOUGH = 0.9


@cache
def functions(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The test functions of a file below the repository's root, by name; those of classes as CLASS::NAME."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        for inside in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{node.name}::{inside.name}" if isinstance(node, ast.ClassDef) else inside.name
                found[name] = inside
    return found


@pytest.mark.parametrize(("folder", "names"), [("browser", SMOKE), ("unit", LEFT_OUT)])
def test_each_name_is_that_of_a_test(folder: str, names: frozenset[str]) -> None:
    for each in names:
        file, _, name = each.partition("[")[0].partition("::")
        path = f"tests/{folder}/test_{file}.py"
        assert (ROOT / path).is_file(), each
        assert not name or name in functions(path), each


def test_a_test_is_named_by_its_file_itself_or_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.default.SMOKE", frozenset({"tape", "life::test_a", "beams::test_b[1]"}))
    monkeypatch.setattr("tests.default.LEFT_OUT", frozenset({"graph", "lora::test_c"}))
    for nodeid, expected in (
        ("tests/browser/test_tape.py::test_any[2]", True),
        ("tests/browser/test_life.py::test_a[1]", True),
        ("tests/browser/test_life.py::test_b", False),
        ("tests/browser/test_beams.py::test_b[1]", True),
        ("tests/browser/test_beams.py::test_b[2]", False),
        ("tests/unit/test_graph.py::test_any", False),
        ("tests/unit/test_lora.py::test_c[1]", False),
        ("tests/unit/test_lora.py::test_d", True),
        ("tests/unit/test_new.py::test_new", True),
        ("tests/browser/test_new.py::test_new", False),
    ):
        assert is_default(nodeid) == expected, nodeid
        file = nodeid.partition("::")[0]
        assert has_default(file) == (file not in ("tests/unit/test_graph.py", "tests/browser/test_new.py")), file


def test_nine_of_ten_seeded_faults_have_a_test_in_the_default() -> None:
    found = [each for each in MUTATIONS if any(is_default(test) for test in each.tests)]
    assert len(found) >= ENOUGH * len(MUTATIONS)


def test_no_test_that_finds_a_seeded_fault_is_extended() -> None:
    for test in {test for each in MUTATIONS for test in each.tests}:
        file, _, name = test.partition("[")[0].partition("::")
        marks = [ast.unparse(mark) for mark in functions(file)[name].decorator_list] if name else []
        assert "pytest.mark.extended" not in marks, test
