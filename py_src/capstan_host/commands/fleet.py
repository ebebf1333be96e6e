"""`fleet`: answer the prompts of a file with browsers on Dask workers, here or on any cluster."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chat_model import SMOLLM2, default_model
from ..command_errors import CommandError
from ..model_arguments import (
    DTYPES,
    add_hub_arguments,
    add_options,
    check_place,
    given_options,
    repository,
)
from ..terminal import Progress, say
from .run import NEW_TOKENS, add_search_arguments, read_search

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "fleet"
NUMBERS = ("workers", "browsers_per_worker", "max_new_tokens", "max_length", "rows", "attempts", "batch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fleet`."""
    add = parser.add_argument_group("prompt").add_argument
    lines = (
        'a file of JSON lines, each {"prompt": TEXT}, {"prompt_ids": [IDS]} or {"messages": [...]}, and an "id" or none'
    )
    add("prompts", metavar="PROMPTS.jsonl", help=lines)
    add("--raw", action="store_true", help="continue the prompts, also with a model that has a chat template")
    group = parser.add_argument_group("model")
    model = f"a folder or a GGUF file that each worker can read, or a hub's repository (default: {SMOLLM2.title})"
    group.add_argument("--model", metavar="PLACE", help=model)
    add_hub_arguments(group)
    dtype = "which graph of a repository (default: one that suits the adapter)"
    group.add_argument("--dtype", choices=sorted(DTYPES), help=dtype)
    add_search_arguments(parser.add_argument_group("sampling"))
    add = parser.add_argument_group("output").add_argument
    out = "write results there; a file of an earlier run is gone on with (default: the standard output)"
    add("--out", metavar="FILE.jsonl", help=out)
    add("--unordered", action="store_true", help="results as they are completed, not in the order of the prompts")
    add("--max-new-tokens", type=int, default=NEW_TOKENS, metavar="N", help="of each item (default: %(default)s)")
    add("--max-length", type=int, default=2048, metavar="N", help="most tokens of an item (default: %(default)s)")
    add = parser.add_argument_group("workers").add_argument
    add("--workers", type=int, metavar="N", help="Dask workers on this machine (default: 1)")
    add("--scheduler", metavar="ADDRESS", help="the scheduler of a Dask cluster, as tcp://HOST:8786, in place of them")
    add("--browsers-per-worker", type=int, default=1, metavar="N", help="default: %(default)s")
    add("--dashboard", metavar="ADDRESS", default="127.0.0.1:8787", help="of Dask's dashboard (default: %(default)s)")
    add_options(parser.add_argument_group("device"), fleet_options())
    advanced = parser.add_argument_group("advanced")
    add = advanced.add_argument
    add("--rows", type=int, default=8, metavar="N", help="items that a page answers together (default: %(default)s)")
    add("--batch", type=int, metavar="N", help="items that a page is sent at a time (default: twice --rows)")
    add("--attempts", type=int, default=3, metavar="N", help="how often an item may fail (default: %(default)s)")
    add("--timeout", type=float, default=900.0, metavar="SECONDS", help="for a batch (default: %(default)s)")


def fleet_options() -> type:
    """The class of the options of a fleet's model."""
    from capstan.loading.load_options import FleetOptions

    return FleetOptions


def check(args: argparse.Namespace) -> None:
    """Refuse what can be refused without a worker; fills `args.search` and `args.hub_model`."""
    for name in NUMBERS:
        value = getattr(args, name)
        if value is not None and value < 1:
            option = name.replace("_", "-")
            raise CommandError(f"--{option} is {value}, but must be at least 1: give a larger number or leave it out")
    if args.scheduler and args.workers is not None:
        raise CommandError(
            "--scheduler and --workers were both given: leave --workers out, since a cluster has its own workers"
        )
    if not Path(args.prompts).is_file():
        raise CommandError(f"{args.prompts} is no file: give a file of JSON lines")
    args.search = read_search(args)
    args.hub_model = None
    if args.model is not None:
        args.hub_model = repository(args.model, args.hub, args.revision)
        if args.hub_model is None and not args.scheduler:
            check_place(Path(args.model))


def lines(path: str) -> Iterator[Any]:
    """The values of the file's lines, a NoItem for a line without one."""
    from capstan.model_files.bounded_json import NotJsonError, read_json

    from ..fleet.items import NoItem

    with Path(path).open("rb") as file:
        for line in file:
            try:
                yield read_json(line.rstrip(b"\r\n"))
            except NotJsonError as error:
                yield NoItem(str(error).removeprefix("line 1, "))


def checked(path: str) -> int:
    """The number of items in a file, with a message about lines that are not items. Raises CommandError if no line is
    an item.
    """
    from ..fleet.items import Item, entries, prompt_input

    count, bad, first = 0, 0, ""
    for count, entry in enumerate(entries(lines(path), {}, prompt_input), 1):
        if isinstance(entry, Item) and entry.error is not None:
            bad += 1
            first = first or f"line {count}: {entry.error.message}"
    if not count:
        raise CommandError(f"{path} is empty: give a line for each prompt")
    if bad == count:
        raise CommandError(f"{path} has no line that is an item; {first}")
    if bad:
        say(f"{path}: {bad} of {count} lines are no items, each with an error in its result; {first}")
    return count


@contextlib.contextmanager
def cluster(args: argparse.Namespace) -> Iterator[Client]:
    """A client of the named Dask cluster, or of a cluster on this machine that lasts as long as the block."""
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        address: Any = args.scheduler
        if address is None:
            address = stack.enter_context(
                LocalCluster(
                    n_workers=args.workers or 1,
                    threads_per_worker=args.browsers_per_worker,
                    dashboard_address=args.dashboard,
                )
            )
        try:
            client = stack.enter_context(Client(address))
        except (OSError, ValueError) as error:
            raise CommandError(f"--scheduler: {address} does not answer ({error}): give a Dask scheduler's") from error
        say(f"Dask's dashboard: {client.dashboard_link}")
        yield client


def run(args: argparse.Namespace) -> int:
    """Answer the prompts. Returns 1 if some failed."""
    from capstan.errors import CapstanError
    from capstan.model_files.hub import HubRepository

    from ..fleet import Fleet

    total = checked(args.prompts)
    site = None if args.scheduler else args.machine.site()
    model: Any = args.model or default_model()
    if args.hub_model is not None:
        named = args.hub_model
        model = HubRepository(named["repository"], named["hub"], named["revision"] or "main", named["token"])
    numbers = {name: getattr(args, name) for name in ("browsers_per_worker", "rows", "max_length", "attempts")}
    try:
        with cluster(args) as client:
            given: Any = {**numbers, **given_options(args, fleet_options())}
            with Fleet(client, model, site=site, timeout=args.timeout, **given) as fleet:
                return answer(args, fleet, total)
    except CapstanError as error:
        raise CommandError(str(error)) from error


def answer(args: argparse.Namespace, fleet: Any, total: int) -> int:
    """Run the fleet over the file, and show its progress."""
    options = {"max_new_tokens": args.max_new_tokens, "ordered": not args.unordered, "batch": args.batch}
    results = fleet.generate(lines(args.prompts), as_message=not args.raw, out=args.out, **options, **args.search)
    progress, begun = Progress(), time.monotonic()
    failed = tokens = done = 0
    for done, item in zip(itertools.count(1), results):
        tokens += len(item.token_ids)
        failed += item.error is not None
        if args.out is None:
            sys.stdout.write(item.line())
            sys.stdout.flush()
        rest = f", {tokens / (time.monotonic() - begun):.1f} tokens/s" + (f", {failed} failed" if failed else "")
        progress.count("items", done, total, rest)
    progress.clear()
    for worker, reason in fleet.unfit.items():
        say(f"worker {worker} could not answer: {reason}")
    there = f", {total - done} were there already" if done < total else ""
    say(f"{done} items in {time.monotonic() - begun:.1f} s{there}, {tokens} tokens, {failed} failed")
    return 1 if failed else 0
