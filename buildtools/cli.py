"""The command line of `build.py`: parse, refuse what is wrong, set up, enter .venv, run the command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from capstan_host import cli
from capstan_host.cli import Commands, Parser, reported

from . import ROOT
from .checkout_machine import CHECKOUT
from .commands import bench, check, dist, docs, package, pin, site, test, wheel
from .environment import ensure, in_venv, venv_python

__all__ = ["COMMANDS", "main", "parse", "parsers"]

COMMANDS: Commands = {
    **cli.COMMANDS,
    "test": (test, "run the tests"),
    "check": (check, "check formatting, lint and types"),
    "bench": (bench, "measure Capstan beside Transformers.js and onnxruntime-web"),
    "site": (site, "assemble the page's files, which the commands serve"),
    "wheel": (wheel, "build the Python wheel"),
    "package": (package, "build the Python wheel and the npm package"),
    "dist": (dist, "build a static folder for any web server, and an npm package"),
    "docs": (docs, "build the documentation as a site"),
    "pin": (pin, "move to another version of onnxruntime-web, and tell what recognition lost"),
}
DESCRIPTION = "Build, run and test Capstan. The first use sets up .venv and node_modules in this folder."


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    return whole_parser()[1]


def whole_parser() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line, and those of the commands."""
    return cli.whole_parser("build.py", DESCRIPTION, COMMANDS)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options; everything after `test` is pytest's."""
    if argv[:1] == ["test"] and argv[1:] not in (["-h"], ["--help"]):
        return argparse.Namespace(command="test", pytest_args=list(argv[1:]), debug=False)
    return cli.parse(argv, *whole_parser(), CHECKOUT)


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit status: 2 for what the user has to mend, 130 for Ctrl-C."""

    def work() -> int:
        args = parse(argv)
        module = COMMANDS[args.command][0]
        module.check(args)
        ensure(module.GROUP)
        if not in_venv():
            return enter_venv(argv)
        return module.run(args)

    return reported(work, "--debug" in argv)


def enter_venv(argv: Sequence[str]) -> int:
    """Start again as the virtual environment's Python."""
    command = [str(venv_python()), str(ROOT / "build.py"), *argv]
    if os.name == "nt":
        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(command[0], command)
