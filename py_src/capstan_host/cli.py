"""The command line `capstan`: parse, refuse what is wrong, run the command. `build.py` has the same commands."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from capstan.errors import OptionError
from capstan.host.tracing import capstan_version

from .command_errors import CommandError
from .commands import chat, exec, fleet, models, run, serve
from .headless.chromium import BrowserError
from .machine import INSTALLED, Machine
from .terminal import speak_utf8

__all__ = ["COMMANDS", "Command", "main", "parse", "reported", "whole_parser"]

PACKAGE = "capstan-webgpu"
INTERRUPTED = 130
BROKEN_PIPE = 141


class Command(Protocol):
    """The interface of a module in `commands`."""

    GROUP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def check(self, args: argparse.Namespace) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


Commands = Mapping[str, tuple[Command, str]]

COMMANDS: Commands = {
    "run": (run, "complete a prompt with a model in a headless browser"),
    "chat": (chat, "hold a conversation with a model in a headless browser"),
    "serve": (serve, "serve the demo page on localhost"),
    "exec": (exec, "run a Python script in the page"),
    "fleet": (fleet, "answer many prompts with browsers on Dask workers"),
    "models": (models, "list, download and delete models, and write the digests that downloads are verified with"),
}
"""The commands that people use, of `capstan` and of `build.py`."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as a CommandError: one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; {self.prog} --help lists the options")


def whole_parser(
    program: str, description: str, commands: Commands
) -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line, and the parsers of the commands by name."""
    parser = Parser(prog=program, description=description, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (module, summary) in commands.items():
        command = subparsers.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(command)
        command.add_argument("--debug", action="store_true", help="show tracebacks and the browser's console")
    return parser, dict(subparsers.choices)


def parse(
    argv: Sequence[str], parser: Parser, commands: Mapping[str, argparse.ArgumentParser], machine: Machine
) -> argparse.Namespace:
    """The command and its options; `rest` holds the arguments after `--` (for exec), `machine` finds the files that the
    command needs.
    """
    rest: list[str] = []
    if argv[:1] == ["exec"] and "--" in argv:
        cut = list(argv).index("--")
        argv, rest = argv[:cut], list(argv[cut + 1 :])
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        commands[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    args.rest = rest
    args.machine = machine
    return args


def reported(work: Callable[[], int], debug: bool) -> int:
    """Do the work and return the exit status; an error is printed as one line. The status is 2 for an error that the
    user can solve, 130 for Ctrl-C.
    """
    speak_utf8()
    try:
        return work()
    except (CommandError, BrowserError, OptionError) as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        if debug and (detail := getattr(error, "detail", "")):
            print(detail, file=sys.stderr)
        return getattr(error, "status", CommandError.status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; Python's last flush must not fail on that, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error} (--debug after the command shows where)", file=sys.stderr)
        return 1


def require_packages(group: str) -> None:
    """Refuse a command whose optional packages are not installed."""
    if group == "fleet" and importlib.util.find_spec("distributed") is None:
        raise CommandError(f'fleet needs Dask, which is not installed: pip install "{PACKAGE}[fleet]"')


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of an installed package and return its exit status."""
    given = sys.argv[1:] if argv is None else argv

    def work() -> int:
        parser, commands = whole_parser("capstan", "Run language models in a browser's page.", COMMANDS)
        parser.add_argument("--version", action="version", version=f"capstan {capstan_version() or 'of a checkout'}")
        args = parse(given, parser, commands, INSTALLED)
        module = COMMANDS[args.command][0]
        module.check(args)
        require_packages(module.GROUP)
        return module.run(args)

    return reported(work, "--debug" in given)
