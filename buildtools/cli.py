"""The command line: parse, refuse what is wrong, set up, enter .venv, run the command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, Protocol

from capstan_host.commands import exec, fleet, models, run, serve
from capstan_host.errors import CommandError

from . import ROOT
from .commands import bench, check, dist, docs, test, wheel
from .environment import ensure, in_venv, venv_python

__all__ = ["main", "parse", "parsers"]


class Command(Protocol):
    """The interface of a module in `commands`."""

    GROUP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def check(self, args: argparse.Namespace) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


COMMANDS: dict[str, tuple[Command, str]] = {
    "run": (run, "complete a prompt with a model in headless Chromium"),
    "serve": (serve, "serve the demo page on localhost"),
    "test": (test, "run all tests"),
    "check": (check, "check formatting, lint and types"),
    "exec": (exec, "run a Python script in the page"),
    "fleet": (fleet, "answer many prompts with browsers on Dask workers"),
    "models": (models, "prepare a model folder: the digests that downloads are verified with"),
    "bench": (bench, "measure Capstan beside Transformers.js and onnxruntime-web"),
    "wheel": (wheel, "build the Python wheel"),
    "dist": (dist, "build a static folder for any web server, and an npm package"),
    "docs": (docs, "build the documentation as a site"),
}
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as a CommandError: one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; {self.prog} --help lists the options")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    return whole_parser()[1]


def whole_parser() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line, and those of the commands."""
    parser = Parser(prog="build.py", description=__doc__, allow_abbrev=False)
    parser.description = "Build, run and test Capstan. The first use sets up .venv and node_modules in this folder."
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (module, summary) in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(command)
        command.add_argument("--debug", action="store_true", help="show tracebacks and the browser's console")
    return parser, dict(subparsers.choices)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options; `rest` holds what follows `--` (for exec)."""
    parser, commands = whole_parser()
    if argv[:1] == ["test"] and argv[1:] not in (["-h"], ["--help"]):
        return argparse.Namespace(command="test", pytest_args=list(argv[1:]), debug=False)
    rest: list[str] = []
    if argv[:1] == ["exec"] and "--" in argv:
        cut = list(argv).index("--")
        argv, rest = argv[:cut], list(argv[cut + 1 :])
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        commands[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    args.rest = rest
    return args


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit status: 2 for what the user has to mend, 130 for Ctrl-C."""
    debug = "--debug" in argv
    try:
        args = parse(argv)
        module = COMMANDS[args.command][0]
        module.check(args)
        ensure(module.GROUP)
        if not in_venv():
            return enter_venv(argv)
        return module.run(args)
    except CommandError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        if debug and error.detail:
            print(error.detail, file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 1


def enter_venv(argv: Sequence[str]) -> int:
    """Start again as the virtual environment's Python."""
    command = [str(venv_python()), str(ROOT / "build.py"), *argv]
    if os.name == "nt":
        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(command[0], command)
