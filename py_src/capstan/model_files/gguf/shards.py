"""Finds the shards of a model in several GGUF files, as llama.cpp's gguf-split writes them.

    NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf, NAME-00003-of-00003.gguf

The metadata of each have its number from 0 on (split.no), the number of the files (split.count) and that of the tensors
in all of them (split.tensors.count). The first file has the model's metadata, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ...errors import ModelFileError
from .header import MOST_COUNT, GgufFile, GgufTensor

__all__ = ["first_shard", "joined", "require_shard", "shard_names"]

NAME = re.compile(r"(?P<front>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.IGNORECASE | re.DOTALL)
MOST_SHARDS = 1024
"""The most files of a model."""

COPY = "copy or download the model's files again, from one place"


def shard_names(name: str) -> tuple[str, ...]:
    """The names of a model's files in order, given one of them; only `name` if the model is one file.

    Raises ModelFileError for a number above the count, or for more files than are read.
    """
    match = NAME.fullmatch(name)
    if match is None:
        return (name,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MOST_SHARDS:
        raise ModelFileError(
            f"{name} is named shard {number} of {count}, expected a number from 1 to the count, and at most "
            f"{MOST_SHARDS} shards; correct the name, or join the shards with llama-gguf-split --merge"
        )
    front, end = match["front"], match["end"]
    return tuple(f"{front}-{each:05}-of-{match['count']}{end}" for each in range(1, count + 1))


def first_shard(name: str) -> str:
    """The name or address of a model's first file, given one of them; `name` if the model is one file."""
    match = NAME.fullmatch(name)
    return f"{match['front']}-00001-of-{match['count']}{match['end']}" if match else name


def require_shard(file: GgufFile, number: int, count: int) -> None:
    """Raise ModelFileError unless the file is shard `number` (from 0) of `count`, the numbers in its name; ConfigError
    for impossible numbers in the metadata.
    """
    found = file.integer("split.count", 1, least=0) or 1
    if found != count:
        named = f"its name is that of one of {count}" if count > 1 else "its name is not a shard's"
        remedy = f"name it NAME-00001-of-{found:05}.gguf, as gguf-split does" if count == 1 else COPY
        raise ModelFileError(f"{file.name} is one of {found} shards (metadata split.count), but {named}; {remedy}")
    place = file.integer("split.no", 0, least=0, most=MOST_COUNT)
    if place != number:
        raise ModelFileError(
            f"{file.name} is shard {place + 1} of {count} (metadata split.no), but its name is that of shard "
            f"{number + 1}; {COPY}"
        )


def joined(files: Sequence[GgufFile]) -> GgufFile:
    """The joined file of these shards of a model, in order; each tensor has its shard.

    Raises ModelFileError if they do not belong to one model.
    """
    first = files[0]
    if len(files) == 1:
        return first
    wanted = first.integer("split.tensors.count", most=MOST_COUNT)
    tensors: dict[str, GgufTensor] = {}
    for number, file in enumerate(files):
        stated = file.integer("split.tensors.count", most=MOST_COUNT)
        if stated != wanted:
            raise ModelFileError(
                f"{file.name} is a shard of a model of {stated} tensors (metadata split.tensors.count), but "
                f"{first.name} is one of a model of {wanted}; {COPY}"
            )
        for name, tensor in file.tensors.items():
            if name in tensors:
                other = files[tensors[name].shard].name
                raise ModelFileError(f"{file.name}: tensor {name} is also in {other}; {COPY}")
            tensors[name] = replace(tensor, shard=number)
    if len(tensors) != wanted:
        raise ModelFileError(
            f"{first.name}: its {len(files)} shards have {len(tensors)} tensors, expected {wanted} (metadata "
            f"split.tensors.count); {COPY}"
        )
    return replace(first, tensors=MappingProxyType(tensors))
