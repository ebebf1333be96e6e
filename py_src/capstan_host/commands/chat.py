"""`chat`: hold a conversation with a model in a headless browser; the same as `run --chat`."""

from __future__ import annotations

import argparse

from .run import GROUP, SYSTEM, add_shared_arguments, check, run

__all__ = ["GROUP", "add_arguments", "check", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `chat`, which are those of `run` without its prompts."""
    parser.add_argument_group("prompt").add_argument("--system", metavar="TEXT", help=SYSTEM)
    add_shared_arguments(parser)
    parser.set_defaults(chat=True, text=None, prompt=None, prompt_ids=None, raw=False, image=None, json=False)
