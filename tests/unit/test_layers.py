"""No module imports upward, no circle, imports inside functions only for a reason, JavaScript only in `_js` and `page`.

The rules, which `problems` applies to the sources without importing them:

- A module imports modules of its own layer or of a lower one, under TYPE_CHECKING too.
- What modules import when they run, wherever in the file, forms no circle of modules and none of the parts in LAYERS.
- An import inside a function is in INSIDE_FUNCTIONS, with its reason.
- Only `_js` and `page` import `js`, `pyodide`, and the page's object `_capstan_host`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "py_src" / "capstan"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "fallback", "model_files.file_names", "model_files.json_text", "model_files.load_times", "spans"),
    (
        *("graph", "guidance", "host.retrying", "host.storage", "memory", "stages"),
        *("generation.speculation", "model_files.config", "model_files.hub", "model_files.model_types"),
        "model_files.repository",
    ),
    (
        "host",
        "device.base",
        "device.cache_rows",
        "device.carried_tensor",
        "device.element_types",
        "device.lora",
        "device.lora_file",
        "device.rows",
        "device.shortlist",
        "device.interface",
        "device.model_memory",
    ),
    ("host.leaving",),
    ("host.notes", "tape", "weights"),
    ("device", "device.webgpu", "device.wasm", "device.reference"),
    ("_js", "local"),
    (
        *("generation.stream", "model_files", "onnxruntime", "tokenizer"),
        *("adapters", "generation", "generation.prefix_cache", "measure", "model", "not_finite", "notebook", "tracing"),
    ),
    ("genai",),
    ("capstan", "page", "_js.start"),
)
"""Parts of the package, lowest layer first: a module, or a package with all below it that is not a part of its own."""

INSIDE_FUNCTIONS = {
    ("local.host", "device.reference.device"): "numpy and onnxruntime are in the extra `reference`",
    ("local.host", "device.reference.model"): "numpy and onnxruntime are in the extra `reference`",
    ("model", "not_finite"): "protobuf is in the extra `reference`",
    ("onnxruntime.checks", "ctypes"): "for who binds several arrays only",
    ("page.read_request", "difflib"): "for an unknown field only",
    ("model_files.folder", "graph"): "protobuf is in the extra `reference`, and needed for repositories only",
    ("local.host", "graph"): "protobuf is in the extra `reference`",
    ("local.tokenizer", "tokenizers"): "in the extra `reference`",
    ("local.tokenizer", "jinja2.sandbox"): "in the extra `reference`, and needed for chat templates only",
}
JAVASCRIPT = ("js", "pyodide", "pyodide_js", "_capstan_host")


@dataclass(frozen=True)
class Import:
    """`target` is a module of Capstan by its name without `capstan.`, or the name of another module."""

    target: str
    ours: bool
    line: int
    runs: bool
    """Whether it happens when the program runs, not for type checkers only."""
    inside: bool
    """Whether it is in a function."""


def sources() -> dict[str, str]:
    """The text of each module, by its name without `capstan.`; `capstan` is the package itself."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "capstan"] = path.read_text()
    return found


def imports(name: str, text: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """The imports of a module."""
    is_package = name == "capstan" or any(other.startswith(f"{name}.") for other in modules)
    here = [] if name == "capstan" else name.split(".")
    package = here if is_package else here[:-1]

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                outside = alias.name.split(".")[0] != "capstan"
                yield (alias.name, False) if outside else (alias.name.removeprefix("capstan."), True)
            return
        if node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".") * bool(node.module)
        elif (node.module or "").split(".")[0] == "capstan":
            base = (node.module or "").split(".")[1:]
        else:
            yield node.module or "", False
            return
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            yield whole if whole in modules else ".".join(base) or "capstan", True

    def walk(node: ast.AST, runs: bool, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for target, ours in targets(child):
                    yield Import(target, ours, child.lineno, runs, inside)
            elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                yield from walk(ast.Module(child.body, []), False, inside)
                yield from walk(ast.Module(child.orelse, []), runs, inside)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, runs, inside or function)

    yield from walk(ast.parse(text), True, False)


def part_of(name: str) -> str | None:
    """The part that a module belongs to, by the longest name; None if there is none."""
    parts = [part for layer in LAYERS for part in layer if name == part or name.startswith(f"{part}.")]
    return max(parts, key=len, default=None)


def layer_of(name: str) -> int:
    part = part_of(name)
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle, its first name again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = list(reversed(error.args[1]))
        return found
    return []


def problems(modules: Mapping[str, str]) -> list[str]:
    """Everything that breaks a rule, and reasons for imports that are not made any more."""
    found = [f"{name} is in no layer; name it in LAYERS" for name in modules if part_of(name) is None]
    if found:
        return found
    graph: dict[str, set[str]] = {name: set() for name in modules}
    parts: dict[str, set[str]] = {}
    reasons_used = set()
    for name, text in modules.items():
        for item in imports(name, text, modules):
            where = f"{name}, line {item.line}: "
            if item.inside:
                reasons_used.add((name, item.target))
                if (name, item.target) not in INSIDE_FUNCTIONS:
                    found.append(f"{where}{item.target} is imported inside a function; import it at the top")
            if item.target.split(".")[0] in JAVASCRIPT and not item.ours and name.split(".")[0] not in ("_js", "page"):
                found.append(f"{where}{item.target} is for _js and page only")
            if not item.ours:
                continue
            if item.target not in modules:
                found.append(f"{where}there is no module {item.target}")
                continue
            if layer_of(item.target) > layer_of(name):
                found.append(f"{where}{item.target} is in a higher layer")
            if item.runs and item.target != name:
                graph[name].add(item.target)
                one, other = part_of(name) or "", part_of(item.target) or ""
                if one != other:
                    parts.setdefault(one, set()).add(other)
    for kind, edges in (("modules", graph), ("parts", parts)):
        if around := circle(edges):
            found.append(f"{kind} import one another: {' -> '.join(around)}")
    for module, target in INSIDE_FUNCTIONS.keys() - reasons_used:
        if module in modules:
            found.append(f"{module} does not import {target} inside a function any more; take it off the list")
    return found


def test_capstan_keeps_its_layers() -> None:
    found = problems(sources())
    assert not found, "\n".join(found)


def test_every_part_exists() -> None:
    modules = sources()
    named = [part for layer in LAYERS for part in layer]
    assert [part for part in named if part not in modules] == []
    assert len(set(named)) == len(named)


def with_changes(changes: Mapping[str, str]) -> list[str]:
    """The problems of a package whose modules are empty but for these and the imports inside functions."""
    modules = dict.fromkeys(sources(), "")
    for module, target in INSIDE_FUNCTIONS:
        outside = target.split(".")[0] not in modules
        modules[module] += f"def f():\n    import {target if outside else 'capstan.' + target}\n"
    return problems({**modules, **changes})


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("stages.search", "from ..model import Model", "stages.search, line 1: model is in a higher layer"),
        ("stages.search", "import capstan.model", "stages.search, line 1: model is in a higher layer"),
        ("stages.search", "from capstan import model", "stages.search, line 1: model is in a higher layer"),
        (
            "memory.span",
            "if TYPE_CHECKING:\n    from ..host import Host",
            "memory.span, line 2: host is in a higher layer",
        ),
        ("_js.host", "from .. import page", "_js.host, line 1: page is in a higher layer"),
        ("generation.stream", "from ..modell import Model", "generation.stream, line 1: there is no module modell"),
        (
            "tape.key",
            "class A:\n    def f():\n        from .. import host",
            "tape.key, line 3: host is imported inside a function; import it at the top",
        ),
        (
            "tape.key",
            "def f():\n    import json",
            "tape.key, line 2: json is imported inside a function; import it at the top",
        ),
        ("measure", "import pyodide.ffi", "measure, line 1: pyodide.ffi is for _js and page only"),
        ("device.wasm.device", "from js import fetch", "device.wasm.device, line 1: js is for _js and page only"),
        ("strange", "", "strange is in no layer; name it in LAYERS"),
        (
            "local.tokenizer",
            "import tokenizers\ndef f():\n    import jinja2.sandbox",
            "local.tokenizer does not import tokenizers inside a function any more; take it off the list",
        ),
    ],
)
def test_what_breaks_a_rule_is_told(module: str, text: str, told: str) -> None:
    assert with_changes({module: text}) == [told]


@pytest.mark.parametrize(
    ("changes", "kind", "around"),
    [
        (
            {"tape.key": "from . import passes", "tape.passes": "from .key import TapeKey"},
            "modules",
            "tape.key tape.passes",
        ),
        (
            {"tape.key": "from ..host.notes import build", "host.notes": "from ..tape.passes import x"},
            "parts",
            "host.notes tape",
        ),
    ],
)
def test_a_circle_is_told(changes: Mapping[str, str], kind: str, around: str) -> None:
    (found,) = with_changes(changes)
    what, circle_found = found.split(" import one another: ")
    assert what == kind
    assert set(circle_found.split(" -> ")) == set(around.split())


def test_imports_for_type_checkers_form_no_circle() -> None:
    checked = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import passes"
    assert with_changes({"tape.key": checked, "tape.passes": "from .key import TapeKey"}) == []
