"""TypeScript and Python that the tables of the wire say: written at set-up and after a change, ignored by git.

- The options of a model: web/src/page/model_options.ts, from py_src/capstan/loading/load_options.py.
- The options of a run: web/src/page/run_options.ts, from py_src/capstan/generation/run_options.py.
- The search options of a run: web/src/wire/search_options.ts, from the modules of py_src/capstan/stages.
- The requests of a page: web/src/wire/requests.ts, from py_src/capstan/page/requests.py and those options.
- The names of errors: web/src/wire/error_codes.ts, from py_src/capstan/errors.py.
- The calls of the JavaScript engine: py_src/capstan/_js/engine_calls.py and web/src/worker/engine_calls.ts, from
  py_src/capstan/device/webgpu/gpu_engine.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import ROOT
from .option_types import OF_PYTHON, OPTIONS, RUN_OPTIONS, STAGES, option_row, page_options, search_options
from .typescript import PLAIN, block, camel, comment, documented, typescript

__all__ = ["engine_calls", "engine_types", "error_codes", "request_types", "wire_is_stale", "write_wire"]

ERRORS = ROOT / "py_src/capstan/errors.py"
REQUESTS = ROOT / "py_src/capstan/page/requests.py"
ENGINE = ROOT / "py_src/capstan/device/webgpu/gpu_engine.py"
OF_THE_PAGE = ("Message", "PickedFolder", "Tool")
"""Types that web/src/wire/page_types.ts defines."""
JS_TYPES = {
    **{name: PLAIN[name] for name in ("str", "int", "float", "bool")},
    **dict.fromkeys(("bytes", "bytes | bytearray | memoryview"), "PyProxy"),
}
"""TypeScript's types of the engine's arguments that cross as they are; others cross as JSON."""
JS_RESULTS = {
    **JS_TYPES,
    "None": "void",
    "bytes": "Uint8Array",
    **dict.fromkeys(("Sequence[float]", "Awaitable[Sequence[float]]"), "Float64Array"),
}
CLASSES = {
    "engine": ("GpuEngine", "engine"),
    "sessions": ("BoundSessions", "bound_sessions"),
    "tapes": ("Tapes", "tapes"),
    "sampling": ("Sampling", "sampling"),
}
"""The class of each object that Python calls, and its module in web/src/worker."""


MAKERS = [Path(__file__).with_name(name) for name in ("wire.py", "option_types.py", "typescript.py")]


def wire_is_stale() -> bool:
    """Whether a generated file is missing, or older than its tables or than what makes it."""
    return any(
        not made.is_file() or made.stat().st_mtime < max(path.stat().st_mtime for path in (*tables, *MAKERS))
        for made, (tables, _) in GENERATED.items()
    )


def write_wire() -> None:
    """Write the generated files."""
    for made, (tables, write) in GENERATED.items():
        temporary = made.with_suffix(made.suffix + ".new")
        temporary.write_text(write(*(table.read_text(encoding="utf-8") for table in tables)), encoding="utf-8")
        temporary.replace(made)


def request_types(table: str, *options: str) -> str:
    """The TypeScript types of the requests."""
    parts = [
        "// The requests of a page that Python answers.\n"
        f"// Written by build.py from {REQUESTS.relative_to(ROOT)}: change that file.\n",
        f'import type {{ {", ".join(OF_THE_PAGE)} }} from "./page_types";\n',
    ]
    for text in (*options, table):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.bases and node.name not in OF_PYTHON:
                parts.append(interface_of(node))
            elif text is table and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name not in (*OF_THE_PAGE, "__all__"):
                    picked = "PickedFolder | " if name == "ModelFolder" else ""
                    parts.append(f"export type {name} = {picked}{typescript(node.value)};\n")
    return "\n".join(parts)


def interface_of(table: ast.ClassDef) -> str:
    """The interface of a TypedDict, its fields after their comments. A field of one with `total=False` may be null."""
    bases = [base for base in map(ast.unparse, table.bases) if base != "TypedDict"]
    fields = []
    for node, about in documented(table.body):
        kind, name = node.annotation, ast.unparse(node.target)
        if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "NotRequired":
            kind, name = kind.slice, f"{name}?"
        told = f"{name}?: {option_row(node, about).type} | null" if table.keywords else f"{name}: {typescript(kind)}"
        fields.append(f"{comment(about)}{told};")
    extends = f" extends {', '.join(bases)}" if bases else ""
    return f"{comment(ast.get_docstring(table))}export interface {table.name}{extends} {block(fields)}"


@dataclass(frozen=True)
class Call:
    """A method of the engine as the table declares it."""

    method: ast.FunctionDef | ast.AsyncFunctionDef
    place: str
    """The object of JavaScript that has it: engine, sessions, tapes or sampling."""
    span: str

    @property
    def name(self) -> str:
        """JavaScript's."""
        return camel(self.method.name)

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """Names and types."""
        given = [*self.method.args.args[1:], *self.method.args.kwonlyargs]
        return [(arg.arg, ast.unparse(arg.annotation)) for arg in given if arg.annotation]

    @property
    def result(self) -> str:
        """Its type."""
        return ast.unparse(self.method.returns) if self.method.returns else "None"

    @property
    def waits(self) -> bool:
        return isinstance(self.method, ast.AsyncFunctionDef)


def calls(table: ast.Module) -> Iterator[Call]:
    """The calls that the protocols of the engine declare, but for those that are written by hand."""
    for protocol in table.body:
        if isinstance(protocol, ast.ClassDef) and (place := declared(protocol)):
            for method in protocol.body:
                by_hand = "by_hand" in map(ast.unparse, getattr(method, "decorator_list", ()))
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not by_hand:
                    yield Call(method, *(declared(method) or place))


def declared(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str] | None:
    """The place and the span of the decorator `js`."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "js":
            given = [ast.literal_eval(value) for value in (*decorator.args, *(k.value for k in decorator.keywords))]
            return given[0], given[1] if len(given) > 1 else ""
    return None


def engine_calls(table: str) -> str:
    """The Python class that makes the calls."""
    tree = ast.parse(table)
    methods = "\n".join(map(python_call, calls(tree)))
    return f'''"""Calls of the JavaScript engine.

Written by build.py from {ENGINE.relative_to(ROOT)}: change that file.
"""

from __future__ import annotations

import json
from typing import Any

from ..host.spans import spanned
from .coding import arriving, numbers, to_json
from .js_errors import typed_errors
{imports_for(tree, methods)}
__all__ = ["EngineCalls"]


class EngineCalls:
    """Each method is one call of web/src/worker/engine.ts, bound_sessions.ts, tapes.ts or sampling.ts."""

    def __init__(self, engine: Any) -> None:
        self.js = engine
        self._engine = engine
        self._sessions = engine.sessions
        self._tapes = engine.tapes
        self._sampling = engine.sampling

{methods}'''


def python_call(call: Call) -> str:
    """One method. No work is left for the time of the call: some are made for each burst."""
    given = ", ".join(name if kind in JS_TYPES else f"to_json({name})" for name, kind in call.arguments)
    made = f"self._{call.place}.{call.name}({given})"
    if call.waits:
        made = f"await {made}"
    kind = call.result
    match kind:
        case "None":
            lines = [made]
        case "int" | "float" | "bool" | "str":
            lines = [f"return {kind}({made})"]
        case "bytes":
            lines = [f"return bytes(({made}).to_bytes())"]
        case "Sequence[float]":
            lines = [f"return numbers({made})"]
        case "Awaitable[Sequence[float]]":
            lines = [f"return arriving({made})"]
        case "list[Difference]":
            lines = [f"return [Difference(**fields) for fields in json.loads({made})]"]
        case _:
            lines = [f"found: {kind} = json.loads({made})", "return found"]
    head = f"{'async ' if call.waits else ''}def {call.method.name}({ast.unparse(call.method.args)}) -> {kind}:"
    whole = [*([f'@spanned("{call.span}")'] if call.span else []), head, "    with typed_errors():"]
    return "".join(f"    {line}\n" for line in [*whole, *(f"        {line}" for line in lines)])


def imports_for(table: ast.Module, text: str) -> str:
    """The imports and definitions of the table that are named in a text, as imports of a module in capstan._js."""
    names = set(re.findall(r"\b[A-Za-z_]\w*", text))
    here = ENGINE.relative_to(ROOT / "py_src/capstan").with_suffix("").parts
    found = {".." + ".".join(here): names & set(public_names(table))}
    for node in table.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module not in ("typing", "__future__"):
            module = node.module
            if node.level:
                module = ".." + ".".join([*here[: len(here) - node.level], node.module])
            found[module] = names & {alias.name for alias in node.names}
    return "".join(f"from {module} import {', '.join(sorted(used))}\n" for module, used in found.items() if used)


def public_names(table: ast.Module) -> list[str]:
    """The names in a module's __all__."""
    for node in table.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def error_codes(table: str) -> str:
    """The names of the errors of capstan.errors."""
    names = "".join(f'\n  | "{name}"' for name in public_names(ast.parse(table)))
    return (
        "// The errors that Python and the worker raise.\n"
        f"// Written by build.py from {ERRORS.relative_to(ROOT)}: change that file.\n\n"
        f"export type PythonErrorCode ={names};\n"
    )


def engine_types(table: str) -> str:
    """The TypeScript types of the classes that Python calls."""
    found = list(calls(ast.parse(table)))
    parts = [
        "// The methods of JavaScript that Python calls.\n"
        f"// Written by build.py from {ENGINE.relative_to(ROOT)}: change that file.\n",
        'import type { PyProxy } from "pyodide/ffi";\n',
        "/** A value as JSON. */\nexport type Json = string;\n",
    ]
    for place in CLASSES:
        lines = [line for call in found if call.place == place for line in typescript_call(call).splitlines()]
        parts.append(f"export interface {interface(place)} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    return "\n".join(parts)


def engine_check(table: str) -> str:
    """TypeScript that compiles only if each class has the methods that Python calls, with as many arguments."""
    interfaces = ", ".join(interface(place) for place in CLASSES)
    return (
        "// Whether the classes have the methods that Python calls; nothing imports this file.\n"
        f"// Written by build.py from {ENGINE.relative_to(ROOT)}: change that file.\n\n"
        + "".join(f'import type {{ {name} }} from "./{file}";\n' for name, file in CLASSES.values())
        + f'import type {{ {interfaces} }} from "./engine_calls";\n\n'
        "/** The methods with another number of arguments: with fewer they would implement an interface, too. */\n"
        "type Count<T> = T extends (...given: infer Given) => unknown ? Given['length'] : never;\n"
        "type Unlike<Calls, Class extends Calls> =\n"
        "  { [N in keyof Calls]: Count<Calls[N]> extends Count<Class[N]> ? never : N }[keyof Calls];\n"
        "type None<Names extends never> = Names;\n"
        + "".join(
            f"export type Unlike{interface(place)} = None<Unlike<{interface(place)}, {name}>>;\n"
            for place, (name, _) in CLASSES.items()
        )
    )


def interface(place: str) -> str:
    return f"{place.capitalize()}Calls"


def typescript_call(call: Call) -> str:
    """One method of an interface."""
    given = ", ".join(f"{camel(name)}: {JS_TYPES.get(kind, 'Json')}" for name, kind in call.arguments)
    result = JS_RESULTS.get(call.result, "Json")
    if call.waits or call.result.startswith("Awaitable"):
        result = f"Promise<{result}>"
    return f"{comment(ast.get_docstring(call.method))}{call.name}({given}): {result};"


GENERATED: dict[Path, tuple[tuple[Path, ...], Callable[..., str]]] = {
    ROOT / "web/src/page/model_options.ts": ((OPTIONS,), page_options),
    ROOT / "web/src/page/run_options.ts": ((RUN_OPTIONS,), partial(page_options, place=RUN_OPTIONS, prefix="")),
    ROOT / "web/src/wire/search_options.ts": (tuple(sorted(STAGES.glob("*.py"))), search_options),
    ROOT / "web/src/wire/error_codes.ts": ((ERRORS,), error_codes),
    ROOT / "web/src/wire/requests.ts": ((REQUESTS, OPTIONS, RUN_OPTIONS), request_types),
    ROOT / "web/src/worker/engine_calls.ts": ((ENGINE,), engine_types),
    ROOT / "web/src/worker/engine_calls_check.ts": ((ENGINE,), engine_check),
    ROOT / "py_src/capstan/_js/engine_calls.py": ((ENGINE,), engine_calls),
}
"""Each generated file, with its tables and what makes its text from theirs."""
