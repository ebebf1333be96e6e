"""Attacks on model folders of a disk: files that are pipes, devices, sockets, links in a circle, folders or endless."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from capstan.model import Model

from .targets import Target

__all__ = ["FILES", "KINDS", "folders", "laid_out"]

MODEL = Path(__file__).parents[1] / "fixtures" / "nano-llama"
FILES = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")


def device(name: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(name)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a named pipe"),
    "zeros": (device("/dev/zero"), "is a device"),
    "nothing": (device("/dev/null"), "is a device"),
    "terminal": (device("/dev/tty"), "(is a device|cannot be read)"),
    "socket": (listening, "cannot be read"),
    "circle": (lambda path: path.symlink_to(path.name), "cannot be read"),
    "dangling": (device("missing"), "cannot be read"),
    "folder": (Path.mkdir, "is a folder"),
    "endless": (endless, "1099511627776 bytes"),
}
"""How each kind is made, and what its error says."""


def laid_out(place: Path, kinds: dict[str, str]) -> None:
    """A model folder whose files of these names are of these kinds."""
    for file in FILES:
        if file in kinds:
            KINDS[kinds[file]][0](place / file)
        else:
            (place / file).write_bytes((MODEL / file).read_bytes())


def mutate(random: Random, data: bytes) -> bytes:
    files = random.sample(FILES, random.choice((1, 1, 2)))
    return json.dumps({file: random.choice([*KINDS]) for file in files}).encode()


async def run(data: bytes) -> None:
    kinds = json.loads(data)
    with tempfile.TemporaryDirectory() as place:
        laid_out(Path(place), kinds)
        await Model.load(place)
    # A longer data file has the weights, too.
    assert all(case == ("model.onnx.data", "endless") for case in kinds.items()), "it was loaded"


folders = Target("folders", b"{}", mutate, run)
