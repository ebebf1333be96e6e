"""Reads adapter files of onnxruntime (`.onnx_adapter`): tensors by name, in a flatbuffer.

    table Adapter   { format_version:int; adapter_version:int; model_version:int; parameters:[Parameter]; }
    table Parameter { name:string; dims:[long]; data_type:int; raw_data:[ubyte]; }      file_identifier "TORT"

Every offset is checked against the file before it is followed, and nothing is copied: tensors are views of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ModelFileError
from .element_types import ONNX_NAMES, byte_count

__all__ = ["IDENTIFIER", "MAX_BYTES", "AdapterFile", "AdapterTensor", "read_adapter", "require_size"]

IDENTIFIER = b"TORT"
FORMAT_VERSION = 1
MAX_BYTES = 1 << 30
"""The largest file."""
MAX_TENSORS = 1 << 16
MAX_NAME = 1 << 10
"""Bytes of a tensor's name."""
MAX_DIMENSIONS = 8
MAX_SIZE = 1 << 31
"""The largest size of one dimension."""


@dataclass(frozen=True)
class AdapterTensor:
    """A tensor of an adapter, in C order."""

    onnx_type: int
    dims: tuple[int, ...]
    data: memoryview

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type."""
        return ONNX_NAMES[self.onnx_type]


@dataclass(frozen=True)
class AdapterFile:
    """The contents of a LoRA adapter file."""

    adapter_version: int
    model_version: int
    tensors: Mapping[str, AdapterTensor]


def read_adapter(data: bytes | bytearray | memoryview, what: str) -> AdapterFile:
    """Parse an adapter file; error messages call it `what`. Raises ModelFileError for any other file."""
    view = memoryview(data).cast("B")
    require_size(len(view), what)
    if len(view) < 8 or view[4:8] != IDENTIFIER:
        raise ModelFileError(
            f"{what}: its {len(view)} bytes are not an adapter file, which has {IDENTIFIER.decode()} at byte 4; "
            "export it "
            "with onnxruntime.AdapterFormat or Olive"
        )
    return Reader(view, what).adapter()


def require_size(size: int, what: str) -> None:
    """Raise ModelFileError for a file that exceeds the limit."""
    if size > MAX_BYTES:
        raise ModelFileError(f"{what} has {size} bytes; an adapter file has at most {MAX_BYTES}: split it")


class Reader:
    """A flatbuffer whose every offset is checked."""

    def __init__(self, view: memoryview, what: str) -> None:
        self.view, self.what = view, what

    def broken(self, why: str) -> ModelFileError:
        return ModelFileError(
            f"{self.what}: damaged adapter file of {len(self.view)} bytes: {why}; copy or export it again"
        )

    def number(self, code: str, at: int) -> int:
        """The little-endian integer at a byte."""
        if not 0 <= at <= len(self.view) - struct.calcsize(code):
            raise self.broken(f"a value at byte {at} is outside of the file")
        found: int = struct.unpack_from(f"<{code}", self.view, at)[0]
        return found

    def table(self, at: int, fields: int) -> list[int]:
        """The offsets of a table's first fields, 0 for those that it leaves out."""
        vtable = at - self.number("i", at)
        size = self.number("H", vtable)
        if size < 4 or size % 2 or vtable + size > len(self.view):
            raise self.broken(
                f"the description at byte {vtable}, of the table at byte {at}, has an invalid size of {size} bytes"
            )
        places = []
        for field in range(fields):
            slot = 4 + 2 * field
            offset = self.number("H", vtable + slot) if slot < size else 0
            places.append(at + offset if offset else 0)
        return places

    def vector(self, field: int, item: int) -> tuple[int, int]:
        """Start and length of a vector with items of `item` bytes; zeros if the table leaves it out."""
        if not field:
            return 0, 0
        at = field + self.number("I", field)
        length = self.number("I", at)
        if at + 4 + length * item > len(self.view):
            raise self.broken(f"{length} items of {item} bytes at byte {at + 4} go past the file's end")
        return at + 4, length

    def adapter(self) -> AdapterFile:
        version, adapter, model, parameters = self.table(self.number("I", 0), 4)
        found = self.optional(version)
        if found != FORMAT_VERSION:
            raise ModelFileError(
                f"{self.what} has format version {found}; Capstan reads {FORMAT_VERSION}: export it again"
            )
        start, count = self.vector(parameters, 4)
        if count > MAX_TENSORS:
            raise self.broken(f"the file has {count} tensors; at most {MAX_TENSORS} are allowed")
        tensors: dict[str, AdapterTensor] = {}
        for slot in range(start, start + 4 * count, 4):
            name, tensor = self.parameter(slot + self.number("I", slot))
            if name in tensors:
                raise self.broken(f"the file has tensor {name!r} twice")
            tensors[name] = tensor
        return AdapterFile(self.optional(adapter), self.optional(model), tensors)

    def optional(self, place: int) -> int:
        """The number of a field, 0 where it is left out."""
        return self.number("i", place) if place else 0

    def parameter(self, at: int) -> tuple[str, AdapterTensor]:
        named, shaped, typed, filled = self.table(at, 4)
        start, length = self.vector(named, 1)
        if not 0 < length <= MAX_NAME:
            raise self.broken(f"a tensor's name has {length} bytes; 1 to {MAX_NAME} are allowed")
        try:
            name = str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(f"a tensor's name is not UTF-8 ({error})") from error
        start, length = self.vector(shaped, 8)
        if length > MAX_DIMENSIONS:
            raise self.broken(f"tensor {name!r} has {length} dimensions; at most {MAX_DIMENSIONS} are allowed")
        dims = tuple(self.number("q", start + 8 * axis) for axis in range(length))
        if not all(0 <= size < MAX_SIZE for size in dims):
            raise self.broken(f"tensor {name!r} has dimensions {list(dims)}; each must be from 0 to {MAX_SIZE - 1}")
        onnx_type = self.optional(typed)
        if onnx_type not in ONNX_NAMES:
            raise ModelFileError(
                f"{self.what}: tensor {name!r} has the ONNX element type {onnx_type}, which Capstan does not read; "
                "export the adapter as float32 or float16"
            )
        needed = byte_count(ONNX_NAMES[onnx_type], dims)
        start, length = self.vector(filled, 1)
        if length != needed:
            raise self.broken(
                f"tensor {name!r} has {length} bytes; {ONNX_NAMES[onnx_type]} {list(dims)} takes {needed}"
            )
        return name, AdapterTensor(onnx_type, dims, self.view[start : start + length])
