"""Model folders on CPython whose files are no files: pipes, devices, links in a circle, and files of any length."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capstan import ModelFileError
from capstan.model import Model
from tests.looped import looped

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
FILES = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (pipe, "is a named pipe"),
    "device": (device, "is a device"),
    "circle": (circle, "cannot be read"),
    "folder": (folder, "is a folder"),
    "endless": (endless, "1099511627776 bytes"),
}
CASES = [(file, kind) for file in FILES for kind in KINDS if (file, kind) != ("model.onnx.data", "endless")]


@looped("case", CASES)
def test_what_is_no_file_of_a_model_is_refused_and_not_waited_for(
    case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, kind = case
    make, said = KINDS[kind]
    place = tmp_path_factory.mktemp("model")
    for file in FILES:
        if file != name:
            (place / file).symlink_to(LLAMA / file)
    make(place / name)
    with pytest.raises(ModelFileError, match=f"/{name}: {said}"):
        asyncio.run(Model.load(place))
