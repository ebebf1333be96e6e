"""The options that a pack's run and `build.py bench` share; what is wrong is refused before anything is started."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path

from capstan_host.command_errors import CommandError
from capstan_host.model_arguments import check_genai, mounts

from .frames import CACHE_ROWS
from .plan import DECODE_ROWS, SECTIONS

__all__ = ["add_run_arguments", "check_place", "check_run_arguments", "named"]

CONTENDERS_AND_ROWS = tuple(
    dict.fromkeys([*(row.contender for row in DECODE_ROWS), *(row.key for row in DECODE_ROWS), *CACHE_ROWS])
)
LEAST = {"rounds": 1, "tokens": 2, "starts": 1, "budget": 1, "limit": 1}
"""A time per token is taken between tokens, so that one alone has none."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    names = ", ".join(SECTIONS)
    parser.add_argument("--out", metavar="FILE.json", type=Path, help="all numbers; FILE.html and FILE.txt beside it")
    parser.add_argument("--sections", metavar="LIST", help=f"comma-separated, of {names}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of the decode section, after the first")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens decoded in a round, at least 2")
    parser.add_argument("--starts", type=int, metavar="N", help="warm page loads of the start section")
    parser.add_argument("--lengths", metavar="LIST", help="prompt lengths, comma-separated")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds in all; what is left is skipped")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds that one step may take")
    bounds = "of the section frames: milliseconds of a prefill run, comma-separated; default and inf are two of them"
    parser.add_argument("--bounds", metavar="LIST", help=bounds)
    parser.add_argument(
        "--without", metavar="LIST", help=f"contenders and rows to leave out, of {', '.join(CONTENDERS_AND_ROWS)}"
    )


def check_run_arguments(args: argparse.Namespace) -> None:
    """Refuse what is wrong; `sections`, `lengths` and `without` become lists, None where they were not given."""
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise CommandError(f"--{name} is {value:g}, but must be at least {least}")
    args.sections = listed(args.sections, "--sections", tuple(SECTIONS))
    args.without = listed(args.without, "--without", CONTENDERS_AND_ROWS)
    args.lengths = lengths(args.lengths)
    args.bounds = bounds(args.bounds)
    if args.out is not None:
        if args.out.suffix != ".json" or args.out.is_dir():
            raise CommandError(f"--out is {args.out}, but must be a file that ends in .json")
        parent = args.out.absolute().parent
        if not parent.is_dir():
            raise CommandError(f"--out is in {parent}, which is no folder: make it, or name another")
        check_place(parent)


def listed(text: str | None, option: str, choices: tuple[str, ...]) -> list[str] | None:
    """The names of a comma-separated list; CommandError for one that is not among the choices."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    wrong = next((name for name in names if name not in choices), None)
    if wrong is not None:
        raise CommandError(f"{option} names {wrong!r}; there are {', '.join(choices)}")
    return names


def lengths(text: str | None) -> tuple[int, ...] | None:
    """Prompt lengths, ascending, each once."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit() and int(part))), None)
    if wrong is not None:
        raise CommandError(f"--lengths holds {wrong!r}, which is no prompt length: give integers from 1, as in 16,128")
    return tuple(sorted(set(map(int, parts))))


def bounds(text: str | None) -> list[str] | None:
    """Milliseconds that Model.load takes as `prefill_ms`, or 'default', in the order given."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        try:
            good = part == "default" or float(part) > 0
        except ValueError:
            good = False
        if not good:
            raise CommandError(f"--bounds holds {part!r}: give milliseconds above 0, inf or default, as in default,inf")
    return list(dict.fromkeys(parts))


def check_place(path: Path) -> None:
    """Refuse a path where nothing can be written: the nearest of its folders that exists is none, or read-only."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "cannot be written to" if there.is_dir() else "is not a folder"
        raise CommandError(f"{there} {reason}: name another place")


def named(places: Iterable[Path]) -> dict[str, Path]:
    """The checked models, folders and GGUF files, by their names."""
    return mounts(
        check_gguf(place) if place.suffix == ".gguf" else check_weights(check_genai(place)) for place in places
    )


def check_gguf(file: Path) -> Path:
    """A GGUF file that is the model; its header is not read."""
    if not file.is_file():
        raise CommandError(f"model file {file} does not exist: name a GGUF file")
    return file


def check_weights(folder: Path) -> Path:
    """A checked model folder, if it has what the bench needs of one beyond that: sizes, and weights in their file."""
    model = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    for name in ("vocab_size", "context_length"):
        if not isinstance(model.get(name), int):
            raise CommandError(f"{folder / 'genai_config.json'}: model.{name} is no integer: export the model again")
    data = folder / f"{model['decoder']['filename']}.data"
    if not data.is_file():
        raise CommandError(
            f"{data} does not exist: the bench needs a model's weights in that file, copy it there or export again"
        )
    return folder
