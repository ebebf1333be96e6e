"""Reads the header of a GGUF file: its metadata, and the place of each tensor.

    "GGUF", version, number of tensors, number of metadata pairs
    for each pair: key, type of the value, value
    for each tensor: name, number of dimensions, dimensions (innermost first), type, offset
    padding up to `general.alignment`, then the tensors' data

All numbers are little-endian. Every count, length and offset is checked before it is used: a file with wrong ones takes
no more memory than its own bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any

from ...errors import ModelFileError, UnsupportedModelError
from .gguf_file import BLOCKS, CONVERT, MOST_ELEMENTS, OTHER_TYPES, GgmlType, GgufFile, GgufTensor, Value

__all__ = ["GgmlType", "GgufFile", "GgufTensor", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FIRST_BYTES = 1 << 20
"""Bytes of the first read; each further read doubles the total."""
MOST_BYTES = 256 << 20
"""The longest header; a vocabulary of 256,000 tokens takes about 10 MB."""
MOST_COUNT = 1 << 16
"""The most metadata pairs, and the most tensors."""
MOST_NESTED = 1 << 16
"""The most arrays within arrays: each takes as long as a pair, but only 12 bytes."""
MOST_NAME = (1 << 16) - 1
"""The longest key or name in bytes."""
MOST_DEPTH = 4
"""The deepest nesting of arrays."""
MOST_DIMS = 4
MOST_ALIGNMENT = 1 << 20

COPY = "copy or download the file again"

Read = Callable[[int, int], Awaitable[bytes]]
"""Reads bytes of the file, given an offset and a length."""


async def read_header(read: Read, size: int, name: str = "model.gguf") -> GgufFile:
    """The header of a file of `size` bytes; errors call it `name`.

    Raises ModelFileError if the bytes are not a whole header of a GGUF file or contradict themselves;
    UnsupportedModelError for a version or a type of tensor that Capstan does not read.
    """
    data = await read(0, min(size, FIRST_BYTES))
    require_gguf(data, name, size)
    parser = Parser(size, name)
    while True:
        try:
            return parser.file(data)
        except ShortError as short:
            most = min(size, MOST_BYTES)
            if short.end > most or len(data) >= most:
                raise short.error(name, size) from None
            wanted = min(max(2 * len(data), short.end), most)
        more = await read(len(data), wanted - len(data))
        if not more:
            raise ModelFileError(f"{name}: the file ended at byte {len(data)}, expected {size} bytes; {COPY}")
        data += more


def require_gguf(data: bytes, name: str, size: int) -> None:
    """Raise ModelFileError, with a guess at the format, if the file is not GGUF."""
    if data.startswith(MAGIC):
        return
    start = data[:64].lstrip()
    if not data:
        what = "an empty file"
    elif start.startswith(b"<"):
        what = "HTML or XML, such as a page about a missing file"
    elif start.startswith(b"version https://git-lfs"):
        what = "Git LFS' pointer to the file"
    elif data[8:9] == b"{" and int.from_bytes(data[:8], "little") < size:
        what = "safetensors"
    elif data[:1] == b"\x08" and b"\x12" in data[:8]:
        what = "ONNX; name its folder instead"
    elif data[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        what = "a file of ggml from before GGUF; convert the model again"
    elif data[:4] == MAGIC[::-1]:
        what = "GGUF with its bytes reversed"
    else:
        what = f"a file that begins with {data[:8].hex(' ')}"
    raise ModelFileError(
        f"{name}: expected GGUF (47 47 55 46), found {what} ({size} bytes); give a GGUF file, or {COPY}"
    )


class ShortError(Exception):
    """The bytes that were read end inside the header."""

    def __init__(self, end: int, inside: str) -> None:
        super().__init__(inside)
        self.end, self.inside = end, inside

    def error(self, name: str, size: int) -> ModelFileError:
        if self.end > size:
            return ModelFileError(
                f"{name}: the file ends at byte {size}, but {self.inside} reaches at least to byte {self.end}; {COPY}"
            )
        return ModelFileError(
            f"{name}: {self.inside} reaches to byte {self.end}, but a header has at most {MOST_BYTES} bytes; {CONVERT}"
        )


NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""Types of numbers in the metadata, by their code for `struct`."""
BOOL, STRING, ARRAY = 7, 8, 9
LENGTH = struct.Struct("<Q")
LEAST_BYTES = {BOOL: 1, STRING: 8, ARRAY: 12, **{kind: struct.calcsize("<" + code) for kind, code in NUMBERS.items()}}
"""The fewest bytes of a value of each type."""


class Parser:
    """Parses a header whose bytes arrive in parts. Long arrays are parsed only once, since a vocabulary takes a page
    tenths of a second.
    """

    def __init__(self, size: int, name: str) -> None:
        self._data, self._size, self._name = b"", size, name
        self._at, self._inside, self._nested = 0, "", 0
        self._strings: dict[int, tuple[list[str], int]] = {}
        """By the place of each array, the strings read so far, and the place after them."""

    def file(self, read: bytes) -> GgufFile:
        """The header, given the bytes read so far. Raises ShortError if they end too early; call it again with more."""
        self._data, self._at, self._inside, self._nested = read, len(MAGIC), "its beginning", 0
        version = self._number("I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = f"big-endian, of version {swapped}" if swapped in (1, *VERSIONS) else f"of version {version}"
            known = " and ".join(map(str, VERSIONS))
            raise UnsupportedModelError(
                f"{self._name} is GGUF {what}; Capstan reads little-endian files of versions {known}: {CONVERT}"
            )
        tensors, pairs = self._count("tensors"), self._count("metadata pairs")
        metadata: dict[str, Value] = {}
        for index in range(pairs):
            self._inside = f"the key of metadata pair {index} of {pairs}"
            key = self._key()
            self._inside = f"metadata {key}"
            if key in metadata:
                raise self._error("is there twice")
            metadata[key] = self._value(self._number("I"), 0)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            self._inside = "metadata general.alignment"
            raise self._error(f"is {alignment!r}, expected a power of two from 8 to {MOST_ALIGNMENT}")
        described = [self._description(index, tensors) for index in range(tensors)]
        data = -(-self._at // alignment) * alignment
        found = {}
        for name, dims, kind, offset in described:
            self._inside = f"tensor {name}"
            if name in found:
                raise self._error("is there twice")
            found[name] = self._tensor(name, dims, kind, offset, data, alignment)
        require_apart(found, self._name)
        return GgufFile(self._name, version, MappingProxyType(metadata), MappingProxyType(found), data)

    def _error(self, what: str, remedy: str = COPY) -> ModelFileError:
        return ModelFileError(f"{self._name}: {self._inside} {what}; {remedy}")

    def _take(self, length: int) -> int:
        """The place of the next `length` bytes, which are skipped."""
        at, end = self._at, self._at + length
        if end > len(self._data):
            raise ShortError(end, self._inside)
        self._at = end
        return at

    def _number(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self._data, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, what: str) -> int:
        count: int = self._number("Q")
        if count > MOST_COUNT:
            raise ModelFileError(f"{self._name} has {count} {what}; at most {MOST_COUNT} are read; {COPY}")
        return count

    def _text(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise self._error(f"is a string of {length} bytes; at most {most} are read")
        at = self._take(length)
        try:
            return self._data[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8 at byte {at + error.start} of the file") from error

    def _key(self) -> str:
        """A key or a tensor's name, in the form for messages."""
        name = self._text(MOST_NAME)
        if not name.isprintable():
            raise self._error(f"is {name[:64]!r}, with characters that are invalid in a name")
        return name

    def _value(self, kind: int, depth: int) -> Value:
        if kind in NUMBERS:
            number: int | float = self._number(NUMBERS[kind])
            return number
        if kind == BOOL:
            return self._flags(1)[0]
        if kind == STRING:
            return self._text(min(MOST_BYTES, self._size))
        if kind != ARRAY:
            raise self._error(f"has a value of type {kind}; the types are 0 to {max(LEAST_BYTES)}")
        if depth == MOST_DEPTH:
            raise self._error(f"is an array nested more than {MOST_DEPTH} levels deep")
        return self._array(depth)

    def _array(self, depth: int) -> tuple[Any, ...]:
        kind, count = self._number("I"), self._number("Q")
        least = LEAST_BYTES.get(kind, 1) * count
        if count > MOST_ELEMENTS or least > self._size - self._at:
            left = self._size - self._at
            raise self._error(
                f"is an array of {count} elements; the limit is {MOST_ELEMENTS}, and the file has {left} bytes left"
            )
        if kind in NUMBERS:
            return struct.unpack_from(f"<{count}{NUMBERS[kind]}", self._data, self._take(least))
        if kind == BOOL:
            return self._flags(count)
        if kind == STRING:
            return self._texts(count)
        self._nested += count
        if self._nested > MOST_NESTED:
            raise self._error(f"has {self._nested} arrays within arrays; at most {MOST_NESTED} are read")
        return tuple(self._value(kind, depth + 1) for _ in range(count))

    def _flags(self, count: int) -> tuple[bool, ...]:
        at = self._take(count)
        found = self._data[at : at + count]
        if found.strip(b"\x00\x01"):
            raise self._error("is a truth value other than 0 and 1")
        return tuple(map(bool, found))

    def _texts(self, count: int) -> tuple[str, ...]:
        """An array of strings. This is a separate loop, since a vocabulary has hundreds of thousands of them."""
        data, place, read = self._data, self._at, LENGTH.unpack_from
        found, at = self._strings.get(place, ([], place))
        end, start = len(data), at
        try:
            for _ in range(count - len(found)):
                if at + 8 > end:
                    raise ShortError(at + 8, self._inside)
                start = at + 8
                stop = start + read(data, at)[0]
                if stop > end:
                    if stop - start > min(MOST_BYTES, self._size):
                        raise self._error(f"has a string of {stop - start} bytes; at most {MOST_BYTES} are read")
                    raise ShortError(stop, self._inside)
                found.append(data[start:stop].decode())
                at = stop
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8 at byte {start + error.start} of the file") from error
        finally:
            self._strings[place] = found, at
        self._at = at
        return tuple(found)

    def _description(self, index: int, count: int) -> tuple[str, tuple[int, ...], int, int]:
        """A tensor's name, dimensions, type and offset in the file."""
        self._inside = f"the description of tensor {index} of {count}"
        name = self._key()
        self._inside = f"the description of tensor {name}"
        dims = self._number("I")
        if not 1 <= dims <= MOST_DIMS:
            raise self._error(f"has {dims} dimensions, expected 1 to {MOST_DIMS}")
        at = self._take(8 * dims + 12)
        *sizes, kind, offset = struct.unpack_from(f"<{dims}QIQ", self._data, at)
        return name, tuple(reversed(sizes)), kind, offset

    def _tensor(
        self, name: str, dims: tuple[int, ...], kind: int, offset: int, data: int, alignment: int
    ) -> GgufTensor:
        if kind not in BLOCKS:
            types = ", ".join(known.name for known in GgmlType)
            raise UnsupportedModelError(
                f"{self._name}: {self._inside} is of type {OTHER_TYPES.get(kind, 'number')} ({kind}); use a file "
                f"whose tensors are of {types}"
            )
        type_ = GgmlType(kind)
        elements, size = type_.block
        shown = " x ".join(map(str, dims))
        if 0 in dims or dims[-1] % elements:
            raise self._error(f"of type {type_.name} is {shown}; rows must be multiples of {elements}", CONVERT)
        length = prod(dims) // elements * size
        start = data + offset
        if offset % alignment:
            raise self._error(f"begins at byte {offset} of the data, which is not a multiple of {alignment}")
        if start + length > self._size:
            raise self._error(
                f"({shown}, {type_.name}) is bytes {start} to {start + length}, but the file has {self._size}"
            )
        return GgufTensor(name, dims, type_, start, length)


def require_apart(tensors: Mapping[str, GgufTensor], name: str) -> None:
    """Raise ModelFileError if two tensors overlap."""
    for one, other in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if one.offset + one.length > other.offset:
            raise ModelFileError(
                f"{name}: tensors {one.name} and {other.name} overlap: the first one ends at byte "
                f"{one.offset + one.length}, the second one begins at byte {other.offset}; {COPY}"
            )
