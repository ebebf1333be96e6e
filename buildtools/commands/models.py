"""`build.py models`: prepares model folders. What a browser has stored is listed on the demo page and from Python."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import ROOT
from ..errors import CommandError
from ..models import check_model, graphs_of
from ..terminal import say

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"
SHARD_SIZE = 4 << 20
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
    sys.path.insert(0, str(ROOT / "py_src"))
    from capstan import graph
    from capstan.errors import CapstanError
    from capstan.weights.manifest import MANIFEST_SUFFIX, Manifest

    folder: Path = args.folder
    located: dict[Path, Path] = {}
    """The graph that names it, by data file."""
    for file in graphs_of(folder):
        try:
            entries = graph.external_entries(graph.parse(file.read_bytes(), str(file)))
        except CapstanError as error:
            raise CommandError(str(error)) from error
        located |= {file.parent / entry.location: file for entry in entries}
    if not located:
        raise CommandError(f"{folder} has no data file: the weights are inside the graphs, export again")
    for data, file in sorted(located.items()):
        if not data.is_file():
            raise CommandError(f"{data} does not exist, but {file.name} names it: copy it there")
        manifest = Manifest.of(pieces(data, args.shard_size), args.shard_size)
        target = data.with_name(data.name + MANIFEST_SUFFIX)
        target.write_text(manifest.serialize())
        say(f"{data.name}: {manifest.size} bytes in {len(manifest.shards)} shards, content {manifest.content}")
        print(target)
    return 0


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """A file's bytes, `size` at a time."""
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
