"""The page of the command line's options, which is made from the parsers.

`python3 -m buildtools.documentation.options` writes it, and so does `build.py docs --pages`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from capstan_host.cli import COMMANDS

from .. import ROOT
from ..cli import parsers as all_parsers

__all__ = ["OPTIONS", "write_page"]

OPTIONS = ROOT / "docs/options.md"
HEAD = """# Options of the command line

The commands that `capstan` and `build.py` share, with their options; [command_line.md](command_line.md) says how they
are used. Each one also has `--help`, and `--debug`, which shows tracebacks and the browser's console. The other
commands of `build.py` list their options with `--help`. `python3 build.py docs --pages` writes this page.

<!-- options -->
"""
TAIL = """
<!-- /options -->
"""
EVERYWHERE = ("--help", "--debug")
"""Options of every command, which the head describes."""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command on the page."""
    return {name: parser for name, parser in all_parsers().items() if name in COMMANDS}


def write_page(page: Path = OPTIONS) -> Path:
    """Write the whole page: options of several commands once, then each command with its own."""
    commands: dict[str, list[str]] = {}
    for name, parser in parsers().items():
        for line in rows(parser):
            commands.setdefault(line, []).append(name)
    together: dict[tuple[str, ...], list[str]] = {}
    for line, names in commands.items():
        together.setdefault(tuple(names), []).append(line)
    shared = {", ".join(names): lines for names, lines in together.items() if len(names) > 1}
    sections = [section(title, "", lines) for title, lines in shared.items()]
    for name, parser in parsers().items():
        also = [f"[{title}](#{title.replace(', ', '-')})" for title in shared if name in title.split(", ")]
        summary = (parser.description or "")[:1].upper() + (parser.description or "")[1:] + "."
        summary += f" It also has the options of {'; '.join(also)}." if also else ""
        sections.append(section(name, summary, together.get((name,), [])))
    page.write_text("\n".join([HEAD, *sections]) + TAIL, encoding="utf-8")
    return page


def rows(parser: argparse.ArgumentParser) -> list[str]:
    """A row for each argument of a command."""
    formatter = argparse.HelpFormatter(parser.prog)
    return [
        " ".join(["|", written(action), "|", *cell(formatter._expand_help(action)).split(), "|"])
        for action in parser._actions
        if action.help not in (None, argparse.SUPPRESS) and not set(action.option_strings) & set(EVERYWHERE)
    ]


def section(title: str, summary: str, lines: list[str]) -> str:
    table = ["| option | meaning |", "| --- | --- |", *lines, ""] if lines else []
    return "\n".join([f"## {title}", "", *([summary, ""] if summary else []), *table])


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
