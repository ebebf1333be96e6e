"""Reads graphs whose weights are inside their own file, without reading the weights.

Such a file may have hundreds of megabytes, of which the graph is a small part. It is read in pieces, and each large
tensor becomes external data of the same file, so that its bytes go from the file to the device like those of any
weight. This module walks the file by protobuf's wire format (a key, then a number, or a length and that number of
bytes); of ONNX it knows only the places of tensors: ModelProto.graph is field 7, GraphProto.initializer is field 5, and
a graph inside a node, as a branch of an If, is at GraphProto.node, NodeProto.attribute, AttributeProto.g: fields 1, 5
and 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from ..errors import ModelFileError
from .model_file import refuse_pointer
from .onnx_pb2 import TensorProto
from .weight_inputs import CONSTANT_BYTES

__all__ = ["without_weights"]

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
WITHIN: dict[str, dict[int, str]] = {
    "model": {GRAPH: "graph"},
    "graph": {1: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph"},
}
"""The messages on the path to tensors, by the enclosing message and their field."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
LARGE_NODE = 1 << 14
"""Nodes with fewer bytes have no subgraph with large tensors, and are not walked, which would take long."""
LEAST_BYTES = 128
"""Float tensors with fewer bytes stay in the graph; other tensors, which may be shapes or axes, stay up to
`CONSTANT_BYTES`.
"""
MATRIX = 2
"""The most dimensions of a weight; tensors with more are constants, such as the frequencies of rotary embedding."""
PIECE = 1 << 18
"""Bytes read at once."""
POINTER_BYTES = 64
"""The number of bytes that show whether a file is a Git LFS pointer."""

Read = Callable[[int, int], Awaitable[bytes]]
"""Reads bytes of the file, given an offset and a length."""


async def without_weights(read: Read, size: int, name: str, location: str) -> bytes:
    """Rewrite an ONNX file of `size` bytes without its large tensors: these become external data at their places in the
    same file, which is called `location`. Errors call it `name`.

    Raises ModelFileError if the bytes are not an ONNX model.
    """
    refuse_pointer(await read(0, min(size, POINTER_BYTES)), size, name)
    file = Pieces(read, size, name)
    return await rewritten(file, "model", 0, size, location)


async def rewritten(file: Pieces, kind: str, start: int, end: int, location: str) -> bytes:
    """A message's content, with large tensors below it as external data."""
    made = bytearray()
    async for field, first, body, last in file.fields(start, end):
        inner = WITHIN[kind].get(field) if kind != "graph" or last - body >= LARGE_NODE else None
        if inner is not None:
            part = await rewritten(file, inner, body, last, location)
        elif kind == "graph" and field == INITIALIZER and last - body >= LEAST_BYTES:
            part = await tensor_without_data(file, body, last, location)
        else:
            made += await file.bytes(first, last)
            continue
        made += key(field) + varint(len(part)) + part
    return bytes(made)


async def tensor_without_data(file: Pieces, start: int, end: int, location: str) -> bytes:
    """A tensor's bytes, without its data if that is large."""
    rest = bytearray()
    data: tuple[int, int, int] | None = None
    async for field, first, content, last in file.fields(start, end):
        if field == RAW_DATA:
            data = (first, content, last)
        else:
            rest += await file.bytes(first, last)
    about = TensorProto()
    about.ParseFromString(bytes(rest))
    if data is None:
        return await file.bytes(start, end)
    length = data[2] - data[1]
    small = CONSTANT_BYTES if about.data_type not in FLOATS or len(about.dims) > MATRIX else LEAST_BYTES - 1
    if length <= small:
        return await file.bytes(start, end)
    about.data_location = TensorProto.EXTERNAL
    for name, value in (("location", location), ("offset", str(data[1])), ("length", str(length))):
        about.external_data.add(key=name, value=value)
    return about.SerializeToString(deterministic=True)


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def key(field: int) -> bytes:
    """The key of a field that has a length."""
    return varint(field << 3 | 2)


class Pieces:
    """The file, read forward in pieces; the last piece is kept."""

    def __init__(self, read: Read, size: int, name: str) -> None:
        self._read, self._size, self._name = read, size, name
        self._at, self._piece = 0, b""

    async def bytes(self, start: int, end: int) -> bytes:
        if end > self._size:
            raise self.error(start)
        if not self._at <= start <= end <= self._at + len(self._piece):
            length = min(max(end - start, PIECE), self._size - start)
            self._at, self._piece = start, await self._read(start, length)
            if len(self._piece) < end - start:
                raise self.error(start)
        return self._piece[start - self._at : end - self._at]

    async def fields(self, start: int, end: int) -> AsyncIterator[tuple[int, int, int, int]]:
        """The fields of a message: number, start of the key, start of the content, end of the content."""
        at = start
        while at < end:
            tag, body = await self._number(at, end)
            kind = tag & 7
            if kind == 0:
                _, last = await self._number(body, end)
            elif kind == 2:
                length, body = await self._number(body, end)
                last = body + length
            elif kind in (1, 5):
                last = body + (8 if kind == 1 else 4)
            else:
                raise self.error(at)
            if last > end or not tag >> 3:
                raise self.error(at)
            yield tag >> 3, at, body, last
            at = last

    async def _number(self, start: int, end: int) -> tuple[int, int]:
        """A varint and its end."""
        data = await self.bytes(start, min(start + 10, end))
        value = 0
        for place, byte in enumerate(data):
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value, start + place + 1
        raise self.error(start)

    def error(self, at: int) -> ModelFileError:
        return ModelFileError(
            f"{self._name}: its {self._size} bytes are not an ONNX model (byte {at}); copy or export the file again"
        )
