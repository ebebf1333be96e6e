"""An ONNX model whose data file is told in parts, as large models are stored for browsers: read and written as protobuf
by the standard library.

Transformers.js 4.3.1 loads 4.9 GB in three parts, and did not get to load them from one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Piece", "split_data"]

GRAPH, INITIALIZER, EXTERNAL_DATA, KEY, VALUE = 7, 5, 13, 1, 2
"""Fields of ModelProto, GraphProto, TensorProto and StringStringEntryProto (onnx.proto)."""
FIXED = {1: 8, 5: 4}
"""Bytes of a field by its wire type, where these alone tell."""
BYTES = 2
"""The wire type of what has a length before it."""


@dataclass(frozen=True)
class Piece:
    """A part of the data file, which holds whole weights; bytes."""

    start: int
    length: int


def split_data(model: bytes, size: int, most: int, name_of: Callable[[int], str]) -> tuple[bytes, list[Piece]]:
    """The model with its weights in parts of a data file of `size` bytes, part i under `name_of(i)`, and the parts: of
    at most `most` bytes each, unless a weight alone has more."""
    places: list[tuple[int, int]] = []

    def note(entries: dict[str, str]) -> dict[str, str]:
        places.append((int(entries.get("offset", 0)), int(entries["length"])))
        return entries

    changed(model, note)
    pieces = cut(sorted(places), size, most)

    def placed(entries: dict[str, str]) -> dict[str, str]:
        offset = int(entries.get("offset", 0))
        number = max(place for place, piece in enumerate(pieces) if piece.start <= offset)
        return {**entries, "location": name_of(number), "offset": str(offset - pieces[number].start)}

    return changed(model, placed), pieces


def cut(places: list[tuple[int, int]], size: int, most: int) -> list[Piece]:
    """Parts of a file, with borders where a weight begins and none before it goes on."""
    starts = [0]
    reached = 0
    border = 0
    for offset, length in places:
        if offset >= reached:
            border = offset
        reached = max(reached, offset + length)
        if reached - starts[-1] > most and border > starts[-1]:
            starts.append(border)
    return [Piece(start, end - start) for start, end in zip(starts, [*starts[1:], size], strict=True)]


def changed(model: bytes, change: Callable[[dict[str, str]], dict[str, str]]) -> bytes:
    """The model with what `change` makes of each external initializer's entries."""

    def tensor(data: bytes) -> bytes:
        found = [(number == EXTERNAL_DATA, whole, value) for number, _, whole, value in fields(data)]
        pairs = [
            {which: text.decode() for which, _, _, text in fields(value)} for is_pair, _, value in found if is_pair
        ]
        if not pairs:
            return data
        made = change({pair[KEY]: pair[VALUE] for pair in pairs})
        told = [field(KEY, key.encode()) + field(VALUE, value.encode()) for key, value in made.items()]
        place = next(place for place, (is_pair, _, _) in enumerate(found) if is_pair)
        kept = [whole for is_pair, whole, _ in found if not is_pair]
        return b"".join([*kept[:place], *(field(EXTERNAL_DATA, pair) for pair in told), *kept[place:]])

    return within(model, GRAPH, lambda graph: within(graph, INITIALIZER, tensor))


def within(message: bytes, which: int, change: Callable[[bytes], bytes]) -> bytes:
    """A message with each field of that number changed."""
    return b"".join(
        field(number, change(value)) if (number, wire) == (which, BYTES) else whole
        for number, wire, whole, value in fields(message)
    )


def fields(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """The fields of a message: number, wire type, all bytes, and those of the value where they have a length."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = varint(message, at)
        number, wire = tag >> 3, tag & 7
        value = b""
        if wire == BYTES:
            length, at = varint(message, at)
            value = message[at : at + length]
            at += length
        elif wire == 0:
            _, at = varint(message, at)
        else:
            at += FIXED[wire]
        yield number, wire, message[begin:at], value


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and the offset behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def field(number: int, value: bytes) -> bytes:
    """A field with a length."""
    return number_bytes(number << 3 | BYTES) + number_bytes(len(value)) + value


def number_bytes(value: int) -> bytes:
    """A varint."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
