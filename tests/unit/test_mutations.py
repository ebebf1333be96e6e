"""The seeded faults fit the product as it is, and `build.py test --mutations` tells which of them no test finds."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from buildtools import ROOT
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.checkout import Checkout
from tests.mutations.main import chosen, try_all
from tests.mutations.mutation import Mutation, MutationError

ROOMS = (
    *("adapters", "device", "device/webgpu", "generation", "genai", "graph", "guidance", "memory"),
    *("model_files", "onnxruntime", "page", "stages", "tape", "tape/ops", "tokenizer", "weights"),
)
LEAST = 60


def mutation(name: str, text: str, instead: str) -> Mutation:
    return Mutation(name, "product.py", text, instead, f"the fault {name}", ("tests/test_product.py",))


PRODUCT = "def total(numbers):\n    # Of none it is 0.\n    return sum(numbers)\n"
KILLED = mutation("sum.lost", "return sum(numbers)", "return 0")
SURVIVOR = mutation("comment.lost", "# Of none it is 0.", "# It is.")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a product and one test of it."""
    root = tmp_path / "root"
    (root / "tests").mkdir(parents=True)
    (root / "product.py").write_text(PRODUCT)
    (root / ".gitignore").write_text("/.venv/\n/node_modules/\n")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "tests/test_product.py").write_text(
        "from product import total\n\n\ndef test_numbers_are_added():\n    assert total([1, 2]) == 3\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_each_fault_fits_the_product_once_and_names_tests_that_there_are() -> None:
    for each in MUTATIONS:
        assert each.mutated(ROOT) != (ROOT / each.file).read_text(encoding="utf-8")
        assert each.fault, each.name
        assert each.tests, each.name
        for test in each.tests:
            file, _, name = test.partition("[")[0].partition("::")
            path = ROOT / file
            assert path.is_file(), f"{each.name}: {file}"
            assert f"def {name.rpartition('::')[2]}" in path.read_text(encoding="utf-8"), f"{each.name}: {test}"


def test_there_are_faults_in_every_room() -> None:
    assert len(MUTATIONS) >= LEAST
    assert max(Counter(each.name for each in MUTATIONS).values()) == 1
    files = [each.file for each in MUTATIONS]
    rooms = [f"py_src/capstan/{room}" for room in ROOMS]
    rooms += [f"py_src/capstan_host/{room}" for room in ("fleet", "headless", "testing")]
    for room in (*rooms, "web/src/worker/gpu", "web/src/worker/storage", "web/src/worker/shaders", "buildtools"):
        assert any(file.startswith((f"{room}/", f"{room}.py")) for file in files), room


def test_a_fault_that_no_test_finds_is_told(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert try_all([KILLED, SURVIVOR], root, tmp_path / "copy") == 1
    told = capsys.readouterr().out
    assert "sum.lost" in told
    assert "tests/test_product.py::test_numbers_are_added" in told
    assert "2 faults, 1 found" in told
    assert told.splitlines()[-1] == "no test finds comment.lost (product.py): the fault comment.lost"
    assert (root / "product.py").read_text() == PRODUCT


def test_a_set_up_in_the_copy_leaves_what_is_installed_alone(root: Path, tmp_path: Path) -> None:
    for name in (
        ".venv/lib/pytest.py",
        ".venv/.capstan-venv",
        "node_modules/esbuild/index.js",
        "node_modules/.capstan",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("installed")
    copy = Checkout(root, tmp_path / "copy").copy
    for stamp in (".venv/.capstan-venv", "node_modules/.capstan"):
        (copy / stamp).unlink()
        assert (root / stamp).read_text() == "installed"
    assert (copy / ".venv/lib").resolve() == root / ".venv/lib"
    assert (copy / "node_modules/esbuild/index.js").read_text() == "installed"


@pytest.mark.parametrize(
    ("each", "told"),
    [
        (mutation("gone", "return max(numbers)", "return 0"), "product.py has its text 0 times, not once"),
        (mutation("twice", "numbers", "others"), "product.py has its text 2 times, not once"),
        (mutation("same", "sum", "sum"), "its text and what stands instead are the same"),
        (Mutation("moved", "other.py", "a", "b", "a fault", ()), "there is no file other.py"),
    ],
)
def test_a_fault_that_does_not_fit_is_to_be_written_anew(root: Path, tmp_path: Path, each: Mutation, told: str) -> None:
    with pytest.raises(MutationError, match=f"{each.name}: {told}.*: write this mutation again"):
        try_all([KILLED, each], root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_faults_are_chosen_by_name_or_pattern() -> None:
    assert chosen([], [KILLED, SURVIVOR]) == [KILLED, SURVIVOR]
    assert chosen(["sum.*"], [KILLED, SURVIVOR]) == [KILLED]
    with pytest.raises(MutationError, match=r"no mutation is named 'sun': --list names them"):
        chosen(["sum.lost", "sun"], [KILLED, SURVIVOR])
