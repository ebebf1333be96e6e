"""`build.py package`: the wheel and the npm package alone, which need neither compression nor the documentation."""

from __future__ import annotations

import argparse
import shutil

from .. import BUILD
from ..site import assemble
from ..wheels import build_wheel
from .dist import npm_package

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "dev"
"""The npm package has the notices of onnxruntime's wheel."""
TARGET = BUILD / "package"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`package` has no options of its own."""


def check(args: argparse.Namespace) -> None:
    """Nothing to refuse."""


def run(args: argparse.Namespace) -> int:
    """Write both into build/package and print their paths."""
    assemble()
    shutil.rmtree(TARGET, ignore_errors=True)
    wheel = build_wheel(TARGET)
    print(npm_package(TARGET))
    print(wheel)
    return 0
