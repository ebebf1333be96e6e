"""`build.py site`: the page's files, which the commands serve."""

from __future__ import annotations

import argparse

from ..site import assemble

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`site` has no options of its own."""


def check(args: argparse.Namespace) -> None:
    """Nothing to refuse."""


def run(args: argparse.Namespace) -> int:
    """Assemble build/site and print its path."""
    print(assemble())
    return 0
