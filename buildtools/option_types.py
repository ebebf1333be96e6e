"""TypeScript of the tables of options: a model's (capstan.loading.load_options), a run's
(capstan.generation.run_options) and a search's (the stages)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from . import ROOT
from .typescript import block, camel, comment, documented, typescript

__all__ = ["OF_PYTHON", "OPTIONS", "RUN_OPTIONS", "STAGES", "option_row", "page_options", "search_options"]

OPTIONS = ROOT / "py_src/capstan/loading/load_options.py"
RUN_OPTIONS = ROOT / "py_src/capstan/generation/run_options.py"
STAGES = ROOT / "py_src/capstan/stages"
OF_PYTHON = ("LoadOptions",)
"""Classes of options that requests lack."""
OF_REQUESTS = (
    *("RequestOptions", "AdaptedOptions", "SequenceOptions", "AnswerOptions", "TalkOptions", "CallOptions", *OF_PYTHON),
)
"""Classes of options that the JavaScript API lacks."""
KINDS = {
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "flag",
    "list[Tool]": 'listOf("objects", object)',
    "dict[str, Any]": "fields({}, { others: plain })",
}
"""The kinds of web/src/page/kinds.ts by Python's types."""
TYPES = {"Tool[]": "readonly object[]"}
"""The JavaScript API's types that differ from those of requests."""


@dataclass(frozen=True)
class OptionRow:
    """A row of the table of options."""

    name: str
    kind: str
    """Its type in Python, None apart."""
    choices: tuple[str, ...]
    about: str | None

    @property
    def type(self) -> str:
        """TypeScript's, of requests."""
        kind = ast.parse(self.kind, mode="eval").body
        return " | ".join(f'"{choice}"' for choice in self.choices) or typescript(kind)

    @property
    def check(self) -> str:
        """The kind that checks it."""
        given = ", ".join(f'"{choice}"' for choice in self.choices)
        return f"oneOf({given})" if given else KINDS[self.kind]


def option_classes(table: str) -> Iterator[tuple[ast.ClassDef, list[str], list[OptionRow]]]:
    """The classes of a table that JavaScript has, with the names of their bases and their own rows."""
    for node in ast.parse(table).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options") and node.name not in OF_REQUESTS:
            bases = [name for name in map(ast.unparse, node.bases) if name != "TypedDict"]
            yield node, bases, [option_row(field, about) for field, about in documented(node.body)]


def option_row(field: ast.AnnAssign, about: str | None) -> OptionRow:
    """The row that a field of such a class is: its type is TYPE or Annotated[TYPE, Row(...)]."""
    kind, choices = field.annotation, ()
    if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple):
        kind, row = kind.slice.elts
        given = cast(ast.Call, row).keywords
        choices = next((ast.literal_eval(each.value) for each in given if each.arg == "choices"), ())
    return OptionRow(ast.unparse(field.target), ast.unparse(kind).removesuffix(" | None"), choices, about)


def page_options(table: str, place: Path = OPTIONS, prefix: str = "Model") -> str:
    """The options of the JavaScript API: an interface for each class of the table at that place, and the kinds of its
    fields."""
    parts, checks = [], ""
    for node, bases, found in option_classes(table):
        extends = f" extends {', '.join(prefix + base for base in bases)}" if bases else ""
        lines = [f"{comment(row.about)}{camel(row.name)}?: {TYPES.get(row.type, row.type)};" for row in found]
        parts.append(f"{comment(ast.get_docstring(node))}export interface {prefix}{node.name}{extends} {block(lines)}")
        kinds = [*(f"...{kinds_of(base)}" for base in bases), *(f"{camel(row.name)}: {row.check}" for row in found)]
        parts.append(f"export const {kinds_of(node.name)} = {{ {', '.join(kinds)} }};\n")
        checks += parts[-1]
    names = ("fields", "flag", "listOf", "number", "object", "oneOf", "plain", "text")
    used = ", ".join(name for name in names if re.search(rf"\b{name}\b", checks))
    head = f"// Options of JavaScript.\n// Written by build.py from {place.relative_to(ROOT)}: change that file.\n"
    return "\n".join([head, f'import {{ {used} }} from "./kinds";\n', *parts])


@dataclass(frozen=True)
class SearchRow:
    """A search option of a stage that pages have by a name of its own."""

    python: str
    parameter: str
    """The name of completions."""
    help: str
    metavar: str
    drawing: bool
    stated: bool

    @property
    def name(self) -> str:
        """The name of an option of a run."""
        return camel(self.parameter)

    def field(self, name: str, type: str) -> str:
        """The field of an interface, after what the command line says of it."""
        about = re.sub(rf"\b{self.metavar}\b", f"`{name}`", self.help[:1].upper() + self.help[1:])
        return f"{comment(f'{about}.')}{name}?: {type};"


def search_rows(modules: tuple[str, ...]) -> Iterator[SearchRow]:
    """The options of the stages in these modules with `page=True`: calls of Option, its name first."""
    for node in (node for module in modules for node in ast.walk(ast.parse(module))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] == "Option":
            given = {each.arg: each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)}
            if given.get("page"):
                name = ast.literal_eval(node.args[0])
                yield SearchRow(
                    python=name,
                    parameter=str(given.get("flag", name)),
                    help=str(given["help"]),
                    metavar=str(given.get("metavar", "N")),
                    drawing=bool(given.get("drawing")),
                    stated=bool(given.get("stated")),
                )


def search_options(*modules: str) -> str:
    """The search options that runs and completions of the JavaScript API have, from the text of the stages."""
    found = list(search_rows(modules))

    def interface_of(name: str, about: str, fields: list[str]) -> str:
        return f"/** {about} */\nexport interface {name} {block(fields)}"

    names = ", ".join(f'{row.name}: "{row.python}"' for row in found)
    parameters = ", ".join(f'{row.parameter}: "{row.name}"' for row in found)
    drawing = ", ".join(f'"{row.name}"' for row in found if row.drawing and row.stated)
    return "\n".join(
        [
            "// The search options that JavaScript has by names of their own.\n"
            f"// Written by build.py from {STAGES.relative_to(ROOT)}/*.py: change those files.\n",
            interface_of("SearchOptions", "The options of a run.", [row.field(row.name, "number") for row in found]),
            interface_of(
                "SearchParams",
                "The parameters of completions; other servers of OpenAI's API have those that are not OpenAI's.",
                [row.field(row.parameter, "number | null") for row in found],
            ),
            interface_of(
                "Picking",
                "The way in which a model's tokens are picked, by Python's names.",
                ["do_sample: boolean;", *(f"{row.python}: number;" for row in found if row.stated)],
            ),
            f"/** Python's names of the options. */\nexport const SEARCH_NAMES = {{ {names} }} as const;\n",
            f"/** The options of the parameters. */\nexport const SEARCH_PARAMS = {{ {parameters} }} as const;\n",
            f"/** A run with one of these is sampled. */\nexport const DRAWING = [{drawing}] as const;\n",
        ]
    )


def kinds_of(name: str) -> str:
    return f"{name.removesuffix('Options').upper()}_KINDS"
