"""`models`: prepares model folders. The demo page and Python list the models that a browser has stored."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..digests import SHARD_SIZE, data_files, write_digests
from ..errors import CommandError
from ..models import DIGESTS_SUFFIX, check_model
from ..terminal import say

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"
LARGEST = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`models shards DIR`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "write the SHA-256 of each shard of a model's weights beside them, so that downloads are verified"
    shards = actions.add_parser("shards", help=summary, description=summary, allow_abbrev=False)
    shards.add_argument("folder", metavar="DIR", help="the model folder")
    size_help = f"bytes of a shard, 1 to {LARGEST}; default: %(default)s"
    shards.add_argument("--shard-size", type=int, default=SHARD_SIZE, metavar="N", help=size_help)
    shards.add_argument("--debug", action="store_true", help="show tracebacks")


def check(args: argparse.Namespace) -> None:
    """Check the folder and the size."""
    if not 0 < args.shard_size <= LARGEST:
        raise CommandError(f"--shard-size is {args.shard_size}, but must be from 1 to {LARGEST}")
    args.folder = check_model(Path(args.folder))


def run(args: argparse.Namespace) -> int:
    """Write a .shards.json for each data file and print its path."""
    folder: Path = args.folder
    files = data_files(folder)
    if not files:
        raise CommandError(f"{folder} has no data file: the weights are inside the graphs, export again")
    for data in files:
        manifest = write_digests(data, args.shard_size)
        say(f"{data.name}: {manifest.size} bytes in {len(manifest.shards)} shards, content {manifest.content}")
        print(data.with_name(data.name + DIGESTS_SUFFIX))
    return 0
