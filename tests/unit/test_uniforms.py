"""A kernel's uniforms, decoded from its WGSL and the bytes that the host uploaded."""

from __future__ import annotations

import struct

import pytest

from capstan.tape.uniforms import declared_fields, uniform_values
from tests.unit.recorded_kernels import KERNELS, pack_uniforms


def struct_of(*fields: str) -> str:
    inside = ",\n".join(f"  {field}" for field in fields)
    return f"const x: u32 = 64;\nstruct Uniforms {{\n{inside}\n}};\nvar<uniform> uniforms: Uniforms;"


def test_fields_are_declared_with_type_and_components() -> None:
    code = struct_of("M: u32", "offset : i32", "epsilon: f32", "shape: vec3<u32>", "pads: vec2<i32>")
    assert declared_fields(code) == [
        ("M", "u32", 1),
        ("offset", "i32", 1),
        ("epsilon", "f32", 1),
        ("shape", "u32", 3),
        ("pads", "i32", 2),
    ]


def test_a_comma_after_the_last_field_is_allowed() -> None:
    for end in ("\n", "", " "):
        code = f"struct Uniforms {{\n  a: u32,\n  b: u32,{end}}};"
        assert declared_fields(code) == [("a", "u32", 1), ("b", "u32", 1)]


@pytest.mark.parametrize(
    "code",
    [
        "fn main() {}",
        struct_of("a: u32", "shape: array<vec4<u32>, 2>"),
        struct_of("a: u32", "half: f16"),
        struct_of("a: u32", "color: vec4<f32>"),
        struct_of("a: mat2x2<f32>"),
        struct_of("@size(16) a: u32"),
        "struct Uniforms { a: u32, b: u32 };",
    ],
    ids=["none", "array", "f16", "vec4<f32>", "matrix", "attribute", "one line"],
)
def test_a_struct_that_is_not_understood_has_no_fields_and_no_values(code: str) -> None:
    assert declared_fields(code) == []
    assert uniform_values(code, bytes(256)) == {}


@pytest.mark.parametrize(
    ("fields", "data", "expected"),
    [
        (["a: u32", "b: u32"], struct.pack("<2I", 7, 4_000_000_000), {"a": 7, "b": 4_000_000_000}),
        (["a: i32", "b: f32"], struct.pack("<if", -7, 0.25), {"a": -7, "b": 0.25}),
        (["a: u32", "b: vec2<u32>"], struct.pack("<4I", 1, 99, 2, 3), {"a": 1, "b": (2, 3)}),
        (
            ["a: u32", "b: vec3<u32>", "c: u32"],
            struct.pack("<8I", 1, 9, 9, 9, 2, 3, 4, 5),
            {"a": 1, "b": (2, 3, 4), "c": 5},
        ),
        (["a: vec3<u32>", "b: vec2<i32>"], struct.pack("<4I2i", 1, 2, 3, 9, -4, -5), {"a": (1, 2, 3), "b": (-4, -5)}),
        (
            ["a: vec2<u32>", "b: vec4<u32>"],
            struct.pack("<8I", 1, 2, 9, 9, 3, 4, 5, 6),
            {"a": (1, 2), "b": (3, 4, 5, 6)},
        ),
    ],
    ids=["scalars", "signed and float", "vec2 at 8", "vec3 at 16, 12 long", "vec2 after vec3", "vec4 at 16"],
)
def test_values_are_where_wgsl_puts_them(fields: list[str], data: bytes, expected: dict[str, object]) -> None:
    assert uniform_values(struct_of(*fields), data) == expected
    assert uniform_values(struct_of(*fields), data + bytes(16)) == expected, "uploads are padded"


@pytest.mark.parametrize("missing", [1, 4, 12])
def test_too_few_bytes_are_no_values(missing: int) -> None:
    data = struct.pack("<4I", 1, 9, 2, 3)
    assert uniform_values(struct_of("a: u32", "b: vec2<u32>"), data[:-missing]) == {}
    assert uniform_values(struct_of("a: u32"), b"") == {}


@pytest.mark.parametrize("name", KERNELS)
def test_what_the_host_packs_is_read_back(name: str) -> None:
    kernel = KERNELS[name]
    sizes = {field: int(kind[3]) if kind.startswith("vec") else 1 for field, kind in kernel.fields}
    values = {
        field: (0.5 + i if kind == "f32" else 1 + i) if sizes[field] == 1 else tuple(range(i, i + sizes[field]))
        for i, (field, kind) in enumerate(kernel.fields)
    }
    assert uniform_values(kernel.code, pack_uniforms(kernel.fields, values)) == values
