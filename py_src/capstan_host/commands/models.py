"""`models`: lists, downloads and deletes models of this machine, and writes the digests of a model folder.

The demo page and Python list the models that a browser has stored.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from capstan.errors import OptionError
from capstan.model_files.hub import HubRepository
from capstan.model_files.known_models import models as known_models

from ..chat_model import SMOLLM2
from ..command_errors import CommandError
from ..digests import SHARD_SIZE, data_files, write_digests
from ..model_arguments import BUNDLED, DIGESTS_SUFFIX, add_hub_arguments, check_model, repository
from ..model_folder import delete, download, stored
from ..places import MODELS
from ..terminal import say

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"
LARGEST = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions `list`, `get`, `delete` and `shards`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        made.add_argument("--debug", action="store_true", help="show tracebacks")
        return made

    action("list", "list the downloaded models, and those of hubs that are known to fit")
    get = action("get", "download the default model, or a GGUF file of a hub")
    get.add_argument("name", metavar="OWNER/NAME:FILE.gguf", nargs="?", help=f"default: {SMOLLM2.title}")
    add_hub_arguments(get)
    gone = action("delete", "delete downloaded models")
    gone.add_argument("names", metavar="NAME", nargs="*", help="a name of `models list`, exactly")
    gone.add_argument("--all", action="store_true", help="delete all downloaded models")
    shards = action(
        "shards", "write the SHA-256 of each shard of a model's weights beside them, so that downloads are verified"
    )
    shards.add_argument("folder", metavar="DIR", help="the model folder")
    size_help = f"bytes of a shard, 1 to {LARGEST}; default: %(default)s"
    shards.add_argument("--shard-size", type=int, default=SHARD_SIZE, metavar="N", help=size_help)


def check(args: argparse.Namespace) -> None:
    """Check the arguments of the action."""
    if args.action == "shards":
        if not 0 < args.shard_size <= LARGEST:
            raise CommandError(f"--shard-size is {args.shard_size}, but must be from 1 to {LARGEST}")
        args.folder = check_model(Path(args.folder))
    if args.action == "get" and args.name is not None:
        args.repository = hub_file(args)
    if args.action == "delete" and bool(args.names) == args.all:
        raise CommandError("models delete needs names or --all, and not both: models list shows the names")


def hub_file(args: argparse.Namespace) -> HubRepository:
    """The file on a hub that the arguments of `get` name."""
    named = repository(args.name, args.hub, args.revision)
    if named is None or ":" not in args.name:
        raise CommandError(
            f"{args.name} is no GGUF file of a hub: give OWNER/NAME:FILE.gguf; a repository of ONNX files is stored by "
            f"the browser, as in {args.machine.program} run --model OWNER/NAME"
        )
    try:
        return HubRepository(args.name, args.hub, args.revision or "main", named["token"])
    except OptionError as error:
        raise CommandError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    match args.action:
        case "list":
            list_models()
        case "get":
            files = [SMOLLM2.fetched()] if args.name is None else download(args.repository)
            print("\n".join(map(str, files)))
        case "delete":
            for path in delete([*stored()] if args.all else args.names):
                say(f"deleted {path}")
        case _:
            write_shards(args.folder, args.shard_size)
    return 0


def list_models() -> None:
    """Print the models of this machine and the known models, one line each."""
    print(f"In {MODELS}:")
    for name, path in stored().items():
        print(f"  {size_of(path.stat().st_size)}  {name}")
    if BUNDLED.is_dir():
        size = sum(path.stat().st_size for path in BUNDLED.iterdir() if path.is_file())
        print(f"  {size_of(size)}  {BUNDLED.name} (a folder of this checkout)")
    print("Known to fit, on hubs (--model NAME):")
    for known in known_models:
        graph = f", --dtype {known.dtype}" if known.dtype else ""
        print(f"  {size_of(known.bytes)}  {known.id} ({known.licence}{graph})")


def size_of(count: int | None) -> str:
    """A size in a column of ten characters."""
    return f"{'-' if count is None else f'{count / 1e6:.1f} MB':>10}"


def write_shards(folder: Path, shard_size: int) -> None:
    """Write a .shards.json for each data file and print its path."""
    files = data_files(folder)
    if not files:
        raise CommandError(f"{folder} has no data file: the weights are inside the graphs, export again")
    for data in files:
        manifest = write_digests(data, shard_size)
        say(f"{data.name}: {manifest.size} bytes in {len(manifest.shards)} shards, content {manifest.content}")
        print(data.with_name(data.name + DIGESTS_SUFFIX))
