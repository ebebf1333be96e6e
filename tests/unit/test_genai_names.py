"""capstan.genai has all names of onnxruntime-genai's module, and docs/genai.md has a row for each that differs."""

from __future__ import annotations

import fnmatch
import inspect
import subprocess
import sys
from enum import EnumType
from pathlib import Path

import onnxruntime_genai as native

from capstan import genai
from tests.unit import test_genai, test_genai_outputs, test_hearing, test_seeing
from tests.unit.genai_cases import SAME

ROOT = Path(__file__).parents[2]
ALIAS = ROOT / "py_src/in_the_wheel/onnxruntime_genai.py"
SPECIAL = ("__call__", "__contains__", "__delitem__", "__getitem__", "__len__", "__or__", "__and__", "__setitem__")
VERSION = ("__version__", "__id__", "__commit__")
CALLED_BY = {
    **dict.fromkeys(("EngineEvent", "TurnUsage", "onnxruntime_genai"), "Engine"),
    "is_dml_available": "is_cuda_available",
}
"""Names that a case of another name calls; every case calls the module."""


def names() -> list[str]:
    """The native package's names, of modules as NAME and of classes' members as CLASS.NAME."""
    found = []
    for name in sorted(vars(native)):
        if name.startswith("_") and name not in VERSION:
            continue
        found.append(name)
        value = getattr(native, name)
        if isinstance(value, type):
            members = [member for member in sorted(vars(value)) if member in SPECIAL or not member.startswith("_")]
            found += [f"{name}.{member}" for member in members]
    return found


def table() -> dict[str, list[str]]:
    """The rows of docs/genai.md: status, note and test by name."""
    names_only, _, _ = (ROOT / "docs/genai.md").read_text().partition("\n## ")
    lines = names_only.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    named = [
        (name.strip("`"), [status, note, test.strip("`")])
        for several, status, note, test in rows
        for name in several.split(", ")
    ]
    assert len(dict(named)) == len(named), "a name stands twice"
    rows_by_name = {name: row for name, row in named if "*" not in name}
    for pattern, row in named:
        if "*" in pattern:
            rows_by_name |= {name: row for name in fnmatch.filter(names(), pattern) if name not in rows_by_name}
    return rows_by_name


def test_every_name_is_there() -> None:
    missing = [name for name in names() if not reachable(name)]
    assert missing == []
    assert set(genai.__all__) >= {name for name in names() if "." not in name} - set(VERSION)


def reachable(name: str) -> bool:
    owner, _, member = name.partition(".")
    if not hasattr(genai, owner):
        return False
    kind = getattr(genai, owner)
    if isinstance(kind, EnumType):
        kind = next(iter(kind))
    return not member or hasattr(kind, member) or member in getattr(kind, "__dataclass_fields__", {})


def test_the_table_has_the_names_that_differ_with_tests_that_exist() -> None:
    rows = table()
    assert set(rows) <= set(names())
    modules = map(vars, (test_genai, test_genai_outputs, test_hearing, test_seeing))
    tests = set(SAME).union(globals(), *modules)
    for name, (status, note, test) in rows.items():
        assert status in ("differs", "no effect", "refused"), name
        assert note, f"{name}: the table gives no reason"
        assert test in tests, f"{name}: there is no test {test!r}"


def test_a_name_without_a_row_has_a_case_that_compares_it() -> None:
    owners = {name.partition(".")[0] for name in set(names()) - set(table())}
    assert [each for each in owners if not any(case.startswith(CALLED_BY.get(each, each)) for case in SAME)] == []


def test_methods_take_arguments_as_the_native_ones_do() -> None:
    for name in ("set_guidance", "set_search_options"):
        assert inspect.signature(getattr(genai.GeneratorParams, name)).parameters
    chat = inspect.signature(genai.Tokenizer.apply_chat_template).parameters
    assert [(p.name, p.kind.name, p.default) for p in chat.values()][1:] == [
        ("messages", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("template_str", "KEYWORD_ONLY", None),
        ("tools", "KEYWORD_ONLY", None),
        ("add_generation_prompt", "KEYWORD_ONLY", True),
    ]


def test_importing_it_by_the_native_name_is_capstan() -> None:
    code = (
        "import onnxruntime_genai as og, capstan.genai, sys\n"
        "from onnxruntime_genai import onnxruntime_genai as inner, Model\n"
        "import onnxruntime_genai.onnxruntime_genai\n"
        "print(og is inner is capstan.genai, Model is capstan.genai.Model)"
    )
    path = f"{ALIAS.parent}:{ROOT / 'py_src'}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert done.stdout == "True True\n", done.stderr


def test_the_native_package_comes_first_where_both_are_installed(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_genai").mkdir()
    (tmp_path / "onnxruntime_genai/__init__.py").write_text("native = True")
    (tmp_path / "onnxruntime_genai.py").write_bytes(ALIAS.read_bytes())
    code = "import onnxruntime_genai; print(onnxruntime_genai.native)"
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "True\n", done.stderr
