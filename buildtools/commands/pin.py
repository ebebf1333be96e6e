"""`build.py pin VERSION`: another version of onnxruntime-web, and what the tape recognises less of its kernels."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections import Counter
from typing import Any

from capstan_host.command_errors import CommandError
from capstan_host.terminal import say

from .. import ROOT
from ..environment import ensure, run_tool, venv_python

__all__ = ["GROUP", "add_arguments", "check", "changes", "run"]

GROUP = "dev"
PACKAGE = "onnxruntime-web"
VERSION = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?")
FILES = (ROOT / "package.json", ROOT / "package-lock.json")
SCRIPT = ROOT / "benches/recognition.py"
FIXTURES = ROOT / "tests/fixtures"
AS_RECORDED = "as recorded"
PLACES = ("fixtures", "families", "long_rope")
"""Folders with models whose decode steps can be recorded."""
NPM = ["--save-exact", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pin`."""
    parser.add_argument("version", metavar="VERSION", help=f"the version of {PACKAGE} on npm")


def check(args: argparse.Namespace) -> None:
    """Check the version's form."""
    if not VERSION.fullmatch(args.version):
        raise CommandError(f"the version is {args.version!r}; give an exact one, such as 1.31.0")


def run(args: argparse.Namespace) -> int:
    """Run the fixtures' models with both versions and print the differences. The package files keep the new version,
    unless it cannot be installed or a run of the models ends early. The status is 1 if a model changed.
    """
    kept = {path: path.read_bytes() for path in FILES}
    present = json.loads(kept[FILES[0]])["dependencies"][PACKAGE]
    if present == args.version:
        raise CommandError(f"{PACKAGE} {present} is the pinned version; give another one")
    before = recognised(present)
    try:
        npm = shutil.which("npm") or "npm"
        wanted = f"{PACKAGE}@{args.version}"
        run_tool([npm, "install", wanted, *NPM], f"choose a version of `npm view {PACKAGE} versions`")
        ensure(GROUP)
        after = recognised(args.version)
    except BaseException:
        for path, text in kept.items():
            path.write_bytes(text)
        ensure(GROUP)
        raise
    lines = changes(before, after)
    for line in lines:
        print(line)
    same = sum(before[name] == after.get(name) for name in before)
    print(f"{PACKAGE} {args.version} is pinned instead of {present}. {same} of {len(before)} models are as before.")
    print(f"Next: build.py test --all, and the texts that name {present}: git grep -F {present} -- docs py_src tests")
    return int(bool(lines))


def recognised(version: str) -> dict[str, dict[str, Any]]:
    """Run each model, and return its ids and the notes of its passes, by its name."""
    folders = sorted(path.parent for path in FIXTURES.glob("**/genai_config.json") if path.parent.parent.name in PLACES)
    say(f"running {len(folders)} models with {PACKAGE} {version}: a few minutes")
    models = [part for folder in folders for part in ("--model", str(folder))]
    command = [venv_python(), ROOT / "build.py", "exec", SCRIPT, "--device", "webgpu", *models]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(found) != len(folders):
        raise CommandError(
            f"{SCRIPT.name} ended with status {done.returncode} after {len(found)} of {len(folders)} models: "
            f"the pin of {PACKAGE} stays as it was; look at the end of its output",
            detail=done.stderr,
        )
    return {each.pop("model"): each for each in found}


def changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each value of a model that is another one, then for each operation that stays as recorded now, with
    the number of models in which it did not before.
    """
    lines = []
    stays: Counter[str] = Counter()
    for name, old in before.items():
        olds, news = (flat(each) for each in (old, after.get(name, {"error": "it was not run"})))
        for key in dict.fromkeys((*olds, *news)):
            if olds.get(key) != news.get(key) and key != AS_RECORDED:
                lines.append(f"{name}, {key}: {olds.get(key, '-')} -> {news.get(key, '-')}")
        stays.update(recorded(news) - recorded(olds))
    return [*lines, *(f"as recorded in {count} more models: {reason}" for reason, count in stays.most_common())]


def flat(told: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in told.items() if key != "passes"}, **told.get("passes", {})}


def recorded(told: dict[str, Any]) -> set[str]:
    """Find the operations that no kernel of Capstan replaces, with the reasons."""
    return {re.sub(r" \(\d+ times\)$", "", each) for each in str(told.get(AS_RECORDED) or "").split("; ") if each}
