"""A recorded lookup of embeddings computes the factor and the cast behind it, as in float16 exports of Gemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capstan.tape import Recorded, Recording, fuse_step
from capstan.tape.ops.gemv import Factor
from capstan.tape.ops.lookup import Lookup
from capstan.tape.recording import BindGroup, Dispatch, Op, Pipeline, Write

TABLE, IDS, ROW, FACTOR, SCALED, WIDE, OTHER = range(11, 18)
K = 1152
UNIFORMS = 30
Kernel = tuple[Sequence[str], Sequence[int], Sequence[str], Sequence[tuple[str, int]]]
"""Bindings, their buffers, lines of the WGSL, and uniforms of u32."""

LOOKUP: Kernel = (
    ("data", "input_indices", "output"),
    (TABLE, IDS, ROW),
    ("var<storage, read> data: array<vec4<f16>>;", "var<storage, read> input_indices: array<vec2<u32>>;"),
    (("data_indices_shape", 262144), ("", K // 4)),
)
SCALE: Kernel = (
    ("input_a", "input_b", "output"),
    (ROW, FACTOR, SCALED),
    (
        "var<storage, read> input_a: array<vec4<f16>>;",
        "let a = input_a[global_idx];",
        "let b = input_b_value_t(input_b[0].x);",
        "output[global_idx]=a * b;",
    ),
    (("element_count", K),),
)
CAST: Kernel = (
    ("x", "y"),
    (SCALED, WIDE),
    (
        "var<storage, read> x: array<vec4<f16>>;",
        "var<storage, read_write> y: array<vec4<f32>>;",
        "let a = x[global_idx];",
        "y[global_idx]=vec4<f32>(a);",
    ),
    (("vec_size", K // 4),),
)
READER: Kernel = (("given", "made"), (WIDE, OTHER), (), ())


def recorded(*kernels: Kernel) -> Recording:
    pipelines, groups = {}, {}
    ops: list[Op] = []
    for number, (names, buffers, lines, uniforms) in enumerate(kernels):
        last = len(names)
        access: dict[tuple[int, int], str] = {(0, i): "read" for i in range(last)}
        access |= {(0, last - 1): "read_write", (0, last): "uniform"}
        fields = [("vec2<u32>" if "shape" in name else "u32", name) for name, _ in uniforms if name]
        struct = ",\n".join(f"  {name}: {kind}" for kind, name in fields)
        declared = [f"@group(0) @binding({i}) {line}" for i, line in enumerate(lines) if line.startswith("var")]
        body = [line for line in lines if not line.startswith("var")]
        code = "\n".join([*declared, f"struct Uniforms {{\n{struct}\n}};", *body])
        bound = dict(zip(((0, i) for i in range(last)), names, strict=True)) | {(0, last): "uniforms"}
        pipelines[number] = Pipeline(f"kernel {number}", access, code, bound)
        entries = [(i, buffer, 0, 4096) for i, buffer in enumerate(buffers)]
        groups[number] = BindGroup((*entries, (last, UNIFORMS + number, 0, 16)))
        data = b"".join(value.to_bytes(4, "little") for _, value in uniforms)
        ops += [Write(UNIFORMS + number, 0, data.ljust(16, b"\0")), Dispatch(number, (number,), 1, 1, 1)]
    sizes = dict.fromkeys([TABLE, IDS, ROW, FACTOR, SCALED, WIDE, OTHER, *range(UNIFORMS, UNIFORMS + 9)], 1 << 16)
    return Recording(1, tuple(ops), pipelines, groups, sizes)


def fused(*kernels: Kernel, lasting: Sequence[int] = (OTHER,)) -> list[Any]:
    known = recorded(*kernels)
    ops = [op for op in known.ops if isinstance(op, Dispatch)]
    placement = fuse_step(known, ops, lasting, ("matvec", "norm", "residual"))
    return [node.what for node in placement.nodes]


def changed(kernel: Kernel, **by: Any) -> Kernel:
    fields = dict(zip(("names", "buffers", "lines", "uniforms"), kernel, strict=True)) | by
    return fields["names"], fields["buffers"], fields["lines"], fields["uniforms"]


def test_a_lookup_multiplies_and_becomes_float32() -> None:
    found = fused(LOOKUP, SCALE, CAST, READER)
    assert found == [Lookup((TABLE,), K, "f16", factor=Factor(FACTOR), wide=True), Recorded(3)]


def test_a_lookup_with_nothing_behind_it_stays() -> None:
    assert fused(LOOKUP, changed(READER, buffers=(ROW, OTHER))) == [Recorded(0), Recorded(1)]


@pytest.mark.parametrize(
    ("kernels", "lasting"),
    [
        ((LOOKUP, SCALE, changed(READER, buffers=(ROW, WIDE)), changed(READER, buffers=(SCALED, OTHER))), ()),
        ((LOOKUP, SCALE, changed(READER, buffers=(SCALED, OTHER))), (ROW,)),
        ((changed(READER, buffers=(WIDE, TABLE)), LOOKUP, SCALE, changed(READER, buffers=(SCALED, OTHER))), ()),
        (
            (
                changed(LOOKUP, lines=[line.replace("vec2<u32>", "u32") for line in LOOKUP[2]]),
                SCALE,
                changed(READER, buffers=(SCALED, OTHER)),
            ),
            (),
        ),
        ((LOOKUP, changed(SCALE, uniforms=(("element_count", 3 * K),)), changed(READER, buffers=(SCALED, OTHER))), ()),
    ],
    ids=["another reads the row", "it outlives the step", "the table is computed", "ids of 32 bits", "several rows"],
)
def test_other_lookups_stay_as_recorded(kernels: Sequence[Kernel], lasting: Sequence[int]) -> None:
    assert fused(*kernels, lasting=(OTHER, *lasting)) == [Recorded(i) for i in range(len(kernels))]
