"""TypeScript of Python's declarations: names, comments, fields of classes."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

__all__ = ["PLAIN", "block", "camel", "comment", "documented", "typescript"]

PLAIN = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "None": "null", "Any": "unknown"}


def camel(name: str) -> str:
    """A name as JavaScript has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def comment(text: str | None) -> str:
    """A docstring as a comment in front of a declaration; empty without one."""
    if not text:
        return ""
    lines = textwrap.wrap(" ".join(text.split()), 110)
    return f"/** {lines[0]} */\n" if len(lines) == 1 else "\n * ".join(["/**", *lines]) + "\n */\n"


def block(fields: list[str]) -> str:
    """The braces of an interface with these fields."""
    lines = "".join(f"  {line}\n" for each in fields for line in each.splitlines())
    return f"{{\n{lines}}}\n" if lines else "{}\n"


def documented(body: list[ast.stmt]) -> Iterator[tuple[ast.AnnAssign, str | None]]:
    """The fields of a class, each with the text after it."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            told = after.value if isinstance(after, ast.Expr) else None
            yield node, told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else None


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
