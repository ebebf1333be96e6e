"""`build.py check`: formatting, lint and types of both halves."""

from __future__ import annotations

import argparse
import os
import subprocess

from capstan_host.terminal import say

from .. import ROOT
from ..environment import venv_python
from ..map import PICTURE, drawn
from ..words import tracked_phrases
from .bench import tables_in_step

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "dev"
MOST_CHARACTERS = 71
MOST_WORKERS = 4
"""Processes of mypy at most; each reads what all share again."""
SINCE = "8e36c2d"
"""Subjects of later commits are checked; older ones stay unchanged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `check`."""
    parser.add_argument("--fix", action="store_true", help="format the files and apply ruff's safe fixes first")


def check(args: argparse.Namespace) -> None:
    """Nothing to refuse."""


def last_subjects() -> list[str]:
    """The subjects of the commits since then; none where the checkout has no history, as in an archive."""
    command = ["git", "log", f"{SINCE}..HEAD", "--no-merges", "--format=%s"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def run(args: argparse.Namespace) -> int:
    """Run every tool, mypy beside the others, even after one has failed; 1 if any failed."""
    python = [str(venv_python()), "-P", "-m"]
    modules = ROOT / "node_modules"
    prettier = ["node", str(modules / "prettier/bin/prettier.cjs"), "--log-level=warn"]
    if args.fix:
        for fix in (
            [*python, "ruff", "check", "--fix-only", "-q"],
            [*python, "ruff", "format", "-q"],
            [*prettier, "--write", "web", "benches/page"],
        ):
            subprocess.run(fix, cwd=ROOT)
    linter = venv_python().with_name("lint-imports")
    commands = {
        "ruff check": [*python, "ruff", "check"],
        "ruff format": [*python, "ruff", "format", "--check"],
        "import-linter": [str(linter), "buildtools/floors.toml", "--no-cache", "--no-logo"],
        "tsc --strict": ["node", str(modules / "typescript/bin/tsc"), "--project", "tsconfig.json"],
        "prettier": [*prettier, "--check", "web", "benches/page"],
    }
    failed = []
    # mypy takes longer than all others together.
    workers = ["--num-workers", str(min(os.cpu_count() or 1, MOST_WORKERS))]
    mypy = subprocess.Popen(
        [*python, "mypy", *workers], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    paths = {**os.environ, "PYTHONPATH": f"py_src{os.pathsep}."}
    for name, command in commands.items():
        say(f"check: {name}")
        tool = subprocess.run(command, cwd=ROOT, env=paths, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if tool.returncode:
            say(tool.stdout.strip())
            failed.append(name)
    say("check: speed tables")
    for path, text in tables_in_step().items():
        if text != path.read_text(encoding="utf-8"):
            say(f"{path.name} is not what the newest results would make of it: python3 build.py bench --readme")
            failed.append(path.name)
    say("check: map")
    if PICTURE.read_text(encoding="utf-8") != drawn():
        say(f"{PICTURE.name} is not of this code: python3 build.py docs --pages")
        failed.append(PICTURE.name)
    say("check: plain words")
    clumsy = tracked_phrases()
    if clumsy:
        say("\n".join(["write subject, verb, object instead of:", *clumsy]))
        failed.append("plain words")
    say("check: commit subjects")
    long = [subject for subject in last_subjects() if len(subject) > MOST_CHARACTERS]
    if long:
        say("\n".join([f"a commit's subject has at most {MOST_CHARACTERS} characters, not", *long]))
        failed.append("commit subjects")
    say("check: mypy --strict")
    found = mypy.communicate()[0].strip()
    if "INTERNAL ERROR" in found:
        say("mypy's workers failed, as they do on a busy machine: it runs again without them")
        again = [*python, "mypy", "--num-workers", "0"]
        mypy = subprocess.Popen(again, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = mypy.communicate()[0].strip()
    say(found)
    if mypy.returncode:
        failed.append("mypy --strict")
    say(f"check: failed: {', '.join(failed)}" if failed else "check: all passed")
    return 1 if failed else 0
