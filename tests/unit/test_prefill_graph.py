"""Which products of a recorded prefill run become ours, for each way that onnxruntime-web multiplies in."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from capstan.tape import Int4Weights, Recorded, Recording, fuse_prefill
from capstan.tape.matmul import MatMul, Quantize
from capstan.tape.placement import Placement
from capstan.tape.recording import BindGroup, Dispatch, Pipeline, Write

ROWS = 64
K, N = 256, 512
UNIFORMS = "struct Uniforms {\n  M: u32\n};\n"
QUANTIZE = "pack4x8snorm(vec4<f32>(norm_a))"
PRODUCT = "output: array<vec4<f16>>"
ACTIVATION = """
let activated_value = gate_value * (one / (one + exp(-gate_value)));
output[global_idx]=activated_value * up_value;
"""


@dataclass
class Sketch:
    """A recording made dispatch by dispatch; buffers by name."""

    ids: dict[str, int] = field(default_factory=dict)
    ops: list[Dispatch] = field(default_factory=list)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    groups: dict[int, BindGroup] = field(default_factory=dict)
    uniforms: dict[int, bytes] = field(default_factory=dict)

    def id(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)

    def run(self, code: str, reads: dict[str, str], writes: dict[str, str], x: int = 1, rows: int = ROWS) -> None:
        """Dispatch a kernel that binds buffers by the names of its WGSL."""
        number = len(self.ops)
        bound = [*reads.items(), *writes.items()]
        names = {(0, i): name for i, (name, _) in enumerate(bound)}
        access = {(0, i): "read" if i < len(reads) else "read_write" for i in range(len(bound))}
        uniform = self.id(f"uniforms {number}")
        self.uniforms[uniform] = struct.pack("<I", rows)
        access[0, len(bound)], names[0, len(bound)] = "uniform", "uniforms"
        entries = [(i, self.id(buffer), 0, 1 << 20) for i, (_, buffer) in enumerate(bound)]
        self.groups[number] = BindGroup((*entries, (len(bound), uniform, 0, 16)))
        self.pipelines[number] = Pipeline(f"kernel {number}", access, UNIFORMS + code, names)
        self.ops.append(Dispatch(number, (number,), x, 1, 1))

    def fused(self, weights: list[str], lasting: list[str], int8: bool = True) -> Placement:
        writes = tuple(Write(buffer, 0, data) for buffer, data in self.uniforms.items())
        sizes = dict.fromkeys(self.ids.values(), 1 << 20)
        recording = Recording(1, (*writes, *self.ops), self.pipelines, self.groups, sizes)
        known = {self.id(name): Int4Weights(self.id(f"{name} scales"), N, K, 32, int8) for name in weights}
        return fuse_prefill(recording, self.ops, [self.id(name) for name in lasting], known, ROWS)

    def quantized(self, x: str, to: str) -> None:
        self.run(QUANTIZE, {"input_a": x}, {"output": to, "scales": f"{to} scales"})

    def int8_product(self, x: str, weights: str, y: str, rows: int = ROWS) -> None:
        reads = {"input_a": x, "scales_a": f"{x} scales", "input_b": weights, "scales_b": f"{weights} scales"}
        self.run(PRODUCT, reads, {"output": y}, rows=rows)

    def layered(self) -> None:
        """A gated layer as onnxruntime-web runs it in int8: each product brings its input into int8 itself."""
        for half in ("gate", "up"):
            self.quantized("x", "q")
            self.int8_product("q", f"W {half}", half)
        self.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "h"})
        self.quantized("h", "q")
        self.int8_product("q", "W down", "y")


def kinds(placement: Placement) -> list[type]:
    return [type(node.what) for node in placement.nodes]


def test_a_gated_layer_in_int8_becomes_two_products() -> None:
    sketch = Sketch()
    sketch.layered()
    placement = sketch.fused(["W gate", "W up", "W down"], ["y"])
    assert kinds(placement) == [Quantize, MatMul, Quantize, MatMul]
    first, gated, _, down = (node.what for node in placement.nodes)
    assert isinstance(first, Quantize)
    assert isinstance(gated, MatMul)
    assert isinstance(down, MatMul)
    assert (first.rows, first.k, first.group, first.element) == (ROWS, K, 128, "f16")
    assert gated.weights == sketch.id("W gate")
    assert gated.up == (sketch.id("W up"), sketch.id("W up scales"))
    assert down.up is None
    assert placement.places[placement.nodes[-1].writes[0]].id == sketch.id("y")


def test_halves_that_others_read_are_not_joined() -> None:
    sketch = Sketch()
    sketch.layered()
    sketch.run("copy", {"a": "gate"}, {"b": "z"})
    placement = sketch.fused(["W gate", "W up", "W down"], ["y", "z"])
    assert kinds(placement) == [Quantize, MatMul, MatMul, Recorded, Quantize, MatMul, Recorded]


def test_products_by_subgroup_matrices_are_replaced_where_they_leave_a_gpu_idle() -> None:
    for groups, expected in ((64, [Quantize, MatMul]), (256, [Recorded, Recorded])):
        sketch = Sketch()
        sketch.run("layout", {"input_a": "x"}, {"output_a": "a"})
        reads = {"input_a": "a", "input_b": "W", "scales_b": "W scales"}
        sketch.run(PRODUCT, reads, {"output": "y"}, x=groups)
        assert kinds(sketch.fused(["W"], ["y"])) == expected


def test_products_in_float_stay_where_the_model_wants_them() -> None:
    sketch = Sketch()
    sketch.run(PRODUCT, {"input_a": "x", "input_b": "W", "scales": "W scales"}, {"output": "y"})
    assert kinds(sketch.fused(["W"], ["y"], int8=False)) == [Recorded]
    assert kinds(sketch.fused(["W"], ["y"], int8=True)) == [Quantize, MatMul]


def test_other_weights_and_other_rows_stay_as_recorded() -> None:
    sketch = Sketch()
    sketch.quantized("x", "q")
    sketch.int8_product("q", "W", "y")
    sketch.int8_product("q", "V", "z")
    sketch.int8_product("q", "W", "last", rows=1)
    placement = sketch.fused(["W"], ["y", "z", "last"])
    assert kinds(placement) == [Recorded, Quantize, MatMul, Recorded, Recorded]


def test_a_product_whose_input_is_gone_when_it_is_joined_stays_as_recorded() -> None:
    sketch = Sketch()
    for half in ("gate", "up"):
        reads = {"input_a": "x", "input_b": f"W {half}", "scales": f"W {half} scales"}
        sketch.run(PRODUCT, reads, {"output": half})
    sketch.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "x"})
    placement = sketch.fused(["W gate", "W up"], ["x"])
    assert kinds(placement) == [Quantize, MatMul], "int8 is made before x changes"
