"""TypeScript and Python that the tables of the wire say: written at set-up and after a change, ignored by git.

- The requests of a page: web/src/requests.ts, from py_src/capstan/page/requests.py.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from . import ROOT

__all__ = ["REQUESTS", "request_types", "wire_is_stale", "write_wire"]

REQUESTS = ROOT / "py_src/capstan/page/requests.py"
OF_THE_PAGE = ("Message", "ModelFolder", "Tool")
"""Types that web/src/protocol.ts defines: those of pages and of chat templates."""
PLAIN = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "None": "null", "Any": "unknown"}


def wire_is_stale() -> bool:
    """Whether a generated file is missing, or older than its table or than this module."""
    return any(
        not made.is_file() or made.stat().st_mtime < max(table.stat().st_mtime, Path(__file__).stat().st_mtime)
        for made, (table, _) in GENERATED.items()
    )


def write_wire() -> None:
    """Write the generated files."""
    for made, (table, write) in GENERATED.items():
        temporary = made.with_suffix(made.suffix + ".new")
        temporary.write_text(write(table.read_text(encoding="utf-8")), encoding="utf-8")
        temporary.replace(made)


def request_types(table: str) -> str:
    """The TypeScript types of the requests."""
    parts = [
        "// The requests of a page that Python answers.\n"
        f"// Written by build.py from {REQUESTS.relative_to(ROOT)}: change that file.\n",
        f'import type {{ {", ".join(OF_THE_PAGE)} }} from "./protocol";\n',
    ]
    for node in ast.parse(table).body:
        if isinstance(node, ast.ClassDef):
            bases = [base for base in map(ast.unparse, node.bases) if base != "TypedDict"]
            extends = f" extends {', '.join(bases)}" if bases else ""
            fields = "\n".join(f"  {line}" for line in interface_lines(node.body))
            parts.append(f"{comment(ast.get_docstring(node))}export interface {node.name}{extends} {{\n{fields}\n}}\n")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name not in (*OF_THE_PAGE, "__all__"):
                parts.append(f"export type {name} = {typescript(node.value)};\n")
    return "\n".join(parts)


def interface_lines(body: list[ast.stmt]) -> Iterator[str]:
    """The fields of a TypedDict, each behind its comment."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            told = after.value if isinstance(after, ast.Expr) else None
            text = told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else None
            kind, name = node.annotation, ast.unparse(node.target)
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "NotRequired":
                kind, name = kind.slice, f"{name}?"
            yield from f"{comment(text)}{name}: {typescript(kind)};".splitlines()


def typescript(kind: ast.expr) -> str:
    """A type of the table."""
    if isinstance(kind, ast.BinOp):
        return f"{typescript(kind.left)} | {typescript(kind.right)}"
    if isinstance(kind, ast.Subscript):
        given = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        match ast.unparse(kind.value):
            case "Literal":
                return " | ".join(f'"{ast.literal_eval(value)}"' for value in given)
            case "list":
                return f"{typescript(given[0])}[]"
            case "dict":
                return f"Record<string, {typescript(given[1])}>"
    name = ast.unparse(kind)
    return PLAIN.get(name, name)


def comment(text: str | None) -> str:
    """A docstring as a comment in front of a declaration; empty without one."""
    if not text:
        return ""
    lines = textwrap.wrap(" ".join(text.split()), 110)
    return f"/** {lines[0]} */\n" if len(lines) == 1 else "\n * ".join(["/**", *lines]) + "\n */\n"


GENERATED: dict[Path, tuple[Path, Callable[[str], str]]] = {ROOT / "web/src/requests.ts": (REQUESTS, request_types)}
"""Each generated file, with its table and what makes its text from the table's."""
