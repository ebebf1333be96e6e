"""Holds the code that all devices share for rewriting a graph: it reads bytes of data files, and turns graphs into
texts for notes.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..graph import WeightEntry
from ..host.notes import Notes
from ..model_files.genai_config import GenaiConfig
from ..weights.weight_file import WeightFile

__all__ = ["OpenWeights", "as_text", "made_from", "read_entries", "reader", "ready_or_noted"]

OpenWeights = Callable[[str], Awaitable[WeightFile]]
"""Opens a data file by its location."""


def made_from(data: bytes, config: GenaiConfig) -> str:
    """Everything that graphs depend on, except the limits of an adapter and LoRA adapters."""
    parts = [hashlib.sha256(data).hexdigest(), repr(config.decoder), config.vocab_size, config.context_length]
    return json.dumps([*parts, config.room])


async def ready_or_noted(notes: Notes | None, name: str, key: str, ready: str | None) -> str | None:
    """Note the ready text for later pages and return it; without one, return the noted text, if any."""
    if ready is None:
        return await notes.read(name, key) if notes else None
    if notes:
        await notes.write(name, key, ready)
    return ready


async def read_entries(entries: Sequence[WeightEntry], open_weights: OpenWeights) -> dict[str, bytes]:
    """The bytes of tensors in data files, by name."""
    found = {}
    for entry in entries:
        file = await open_weights(entry.location)
        try:
            found[entry.name] = await file.read(entry.offset, entry.length)
        finally:
            file.close()
    return found


def as_text(value: Any) -> str:
    """A frozen dataclass as JSON, for `reader`."""
    return json.dumps(asdict(value), default=lambda data: b64encode(data).decode())


Reader = Callable[[Any], Any]


def as_it_is(value: Any) -> Any:
    """JSON represents a value of this type directly."""
    return value


@cache
def reader(kind: Any) -> Reader:
    """The function that rebuilds a value of a type from its JSON: a frozen dataclass, or a field of one. It is made
    once for each type, since there are thousands of values of a few types.
    """
    if kind is bytes:
        return b64decode
    if isinstance(kind, UnionType):
        return union_reader([part for part in get_args(kind) if part is not NoneType])
    if get_origin(kind) is dict:
        read = reader(get_args(kind)[1])
        return lambda tree: {name: read(value) for name, value in tree.items()}
    if get_origin(kind) is tuple:
        return tuple_reader(reader(get_args(kind)[0]))
    return object_reader(kind) if is_dataclass(kind) else as_it_is


def tuple_reader(read: Reader) -> Reader:
    return tuple if read is as_it_is else lambda items: tuple(map(read, items))


def object_reader(kind: Any) -> Reader:
    """Reads a dataclass with all fields, in their order."""
    types = get_type_hints(kind)
    reads = [reader(types[field.name]) for field in fields(kind)]
    return lambda tree: kind(*[read(value) for read, value in zip(reads, tree.values(), strict=True)])


def union_reader(kinds: Sequence[Any]) -> Reader:
    """Reads one of several types, or None; dataclasses are distinguished by their fields."""
    objects: list[Any] = [kind for kind in kinds if is_dataclass(kind)]
    by_names = {frozenset(field.name for field in fields(kind)): reader(kind) for kind in objects}
    plain = reader(kinds[0]) if not by_names else as_it_is

    def read(tree: Any) -> Any:
        if tree is None:
            return None
        return (by_names[frozenset(tree)] if by_names else plain)(tree)

    return read
