"""`build.py test`: the tests that find most in a few minutes (tests/default.py), with `--all` all but those of browsers
that take minutes each, with `--extended` those, too; other arguments are passed on to pytest instead. Tests of examples
and notebooks, which need registries, run by their paths alone."""

from __future__ import annotations

import argparse
import os
import subprocess

from .. import CACHE, ROOT
from ..environment import venv_python

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "dev"
WHOLE: dict[tuple[str, ...], list[str]] = {(): ["--default"], ("--all",): ["--all"], ("--extended",): ["--extended"]}
"""pytest's options for the arguments that name no test."""
OTHERS = {
    "--faults": "tests.faults",
    "--mutations": "tests.mutations",
    "--matrix": "tests.mutations.matrix",
    "--soak": "tests.soak",
}
"""The module that takes pytest's place, by option."""
LONGEST = "--durations=25"
"""Lists the tests that took longest."""
PROCESSES = 4
"""At most so many browsers at once: each has a software adapter, which takes about a GB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything after `test` is pytest's."""
    parser.add_argument("pytest_args", nargs="*", metavar="...", help="arguments for pytest, such as -k NAME or a path")
    parser.add_argument("--all", action="store_true", help="all tests but those of browsers that take minutes")
    parser.add_argument("--extended", action="store_true", help="those that take minutes each, too")
    parser.add_argument("--faults", action="store_true", help="try bad input instead: --seed N, --count N ...")
    parser.add_argument("--mutations", action="store_true", help="seed faults and see each found instead: NAME, --list")
    parser.add_argument("--matrix", action="store_true", help="try random faults instead: --python N, --web N, --share")
    parser.add_argument("--soak", metavar="MINUTES", help="run models and lose devices instead: --seed N, --out FILE")


def check(args: argparse.Namespace) -> None:
    """Nothing to refuse: pytest knows its own arguments."""


def run(args: argparse.Namespace) -> int:
    """Assemble the site once, then run pytest in the checkout."""
    from ..browser import find_browser
    from ..site import assemble

    # Compiled once, not by each process of each run; an environment that forbids files beside the sources is obeyed.
    kept = {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode")}
    env = {**{name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **kept}
    for option, module in OTHERS.items():
        if option in args.pytest_args:
            given = [argument for argument in args.pytest_args if argument != option]
            paths = os.pathsep.join([str(ROOT / "py_src"), str(ROOT)])
            command = [venv_python(), "-P", "-m", module, *given]
            return subprocess.run(command, cwd=ROOT, env={**env, "PYTHONPATH": paths}).returncode
    find_browser()
    assemble()
    arguments = args.pytest_args
    whole = WHOLE.get(tuple(arguments))
    if whole is not None:
        processes = str(min(os.cpu_count() or 1, PROCESSES))
        spread = ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]
        arguments = [*whole, *spread, "--ignore=tests/examples", "--ignore=tests/notebooks", LONGEST]
    return subprocess.run([venv_python(), "-P", "-m", "pytest", *arguments], cwd=ROOT, env=env).returncode
