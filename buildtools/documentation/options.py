"""The page of the command line's options, which is made from the parsers.

`python3 -m buildtools.documentation.options` writes it, and so does `build.py docs --pages`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import ROOT
from ..cli import parsers

__all__ = ["OPTIONS", "write_page"]

OPTIONS = ROOT / "docs/options.md"
HEAD = """# Options of the command line

Every command of `build.py`, with its options. [command_line.md](command_line.md) says how they are used. This page is
written by `python3 build.py docs --pages`.

<!-- options -->
"""
TAIL = """
<!-- /options -->
"""


def write_page(page: Path = OPTIONS) -> Path:
    """Write the whole page."""
    sections = [section(name, parser) for name, parser in parsers().items()]
    page.write_text("\n".join([HEAD, *sections]) + TAIL, encoding="utf-8")
    return page


def section(name: str, parser: argparse.ArgumentParser) -> str:
    """A command: its summary, and a row for each argument."""
    formatter = argparse.HelpFormatter(parser.prog)
    rows = [
        " ".join(["|", written(action), "|", *cell(formatter._expand_help(action) if action.help else "").split(), "|"])
        for action in parser._actions
        if action.help is not argparse.SUPPRESS
    ]
    summary = (parser.description or "")[:1].upper() + (parser.description or "")[1:]
    return "\n".join([f"## {name}", "", f"{summary}.", "", "| option | meaning |", "| --- | --- |", *rows, ""])


def written(action: argparse.Action) -> str:
    """An option as it is typed."""
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if action.choices is not None and action.metavar is None:
        value = "|".join(map(str, action.choices))
    names = [f"{option} {value}".strip() for option in action.option_strings] or [str(value)]
    return ", ".join(f"`{cell(name)}`" for name in names)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(write_page())
