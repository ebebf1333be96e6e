"""Reads the uniforms of a recorded dispatch: the struct that its WGSL declares, and the bytes that the host uploaded
for it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

__all__ = ["Number", "declared_fields", "uniform_values"]

Number = int | float | tuple[int, ...]

STRUCT = re.compile(r"struct Uniforms \{(.*?)\}", re.DOTALL)
FIELD = re.compile(r"(\w+)\s*:\s*(u32|i32|f32|vec[234]<(?:u32|i32)>)")
FORMATS = {"u32": "I", "i32": "i", "f32": "f"}
ALIGNMENT = {1: 4, 2: 8, 3: 16, 4: 16}
"""The alignment of a WGSL scalar or vector in the uniform address space, by its number of 4-byte components."""


def declared_fields(code: str) -> list[tuple[str, str, int]]:
    """(name, scalar type, components) of each field of `struct Uniforms`; empty if there is none or it has fields of
    other types.
    """
    found = STRUCT.search(code)
    if not found:
        return []
    fields = []
    for line in filter(None, (part.strip() for part in re.split(r",\s*\n", found[1]))):
        field = FIELD.fullmatch(line.rstrip(","))
        if not field:
            return []
        kind = field[2]
        fields.append((field[1], kind[5:8], int(kind[3])) if kind.startswith("vec") else (field[1], kind, 1))
    return fields


def uniform_values(code: str, data: bytes) -> Mapping[str, Number]:
    """The fields by name, laid out as WGSL lays out uniform structs; empty if `data` is too short for them."""
    values: dict[str, Number] = {}
    offset = 0
    for name, scalar, components in declared_fields(code):
        alignment = ALIGNMENT[components]
        offset = -(-offset // alignment) * alignment
        if offset + 4 * components > len(data):
            return {}
        found = struct.unpack_from(f"<{components}{FORMATS[scalar]}", data, offset)
        values[name] = found[0] if components == 1 else found
        offset += 4 * components
    return values
