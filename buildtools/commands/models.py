"""`build.py models`: prepares model folders. What a browser has stored is listed on the demo page and from Python."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import ROOT
from ..errors import CommandError
from ..models import check_model
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
    from capstan.config import parse_genai_config
    from capstan.errors import CapstanError
    from capstan.weights.manifest import MANIFEST_SUFFIX, Manifest

    folder: Path = args.folder
    try:
        config = parse_genai_config((folder / "genai_config.json").read_bytes(), str(folder / "genai_config.json"))
        model = graph.parse((folder / config.decoder.filename).read_bytes(), str(folder / config.decoder.filename))
        locations = sorted({entry.location for entry in graph.external_entries(model)})
    except CapstanError as error:
        raise CommandError(str(error)) from error
    if not locations:
        raise CommandError(f"{folder / config.decoder.filename} has no data file: its weights are inside, export again")
    for location in locations:
        data = folder / location
        if not data.is_file():
            raise CommandError(f"{data} does not exist, but {config.decoder.filename} names it: copy it there")
        manifest = Manifest.of(pieces(data, args.shard_size), args.shard_size)
        target = folder / (location + MANIFEST_SUFFIX)
        target.write_text(manifest.serialize())
        say(f"{data.name}: {manifest.size} bytes in {len(manifest.shards)} shards, content {manifest.content}")
        print(target)
    return 0


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """A file's bytes, `size` at a time."""
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
