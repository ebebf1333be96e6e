"""Recorded prefill runs made dispatch by dispatch, for tests of what becomes of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from capstan.tape import NBitsWeights, Recording, WorkgroupLimits, fuse_prefill
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.placement import Placement
from capstan.tape.recording import BindGroup, Dispatch, Pipeline, Write

__all__ = ["ACTIVATION", "MATRICES", "PRODUCT", "QUANTIZE", "ROWS", "K", "N", "Sketch", "kinds", "read_by"]

ROWS = 64
K, N = 256, 512
QUANTIZE = "pack4x8snorm(vec4<f32>(norm_a))"
PRODUCT = "output: array<vec4<f16>>"
ACTIVATION = """
let activated_value = gate_value * (one / (one + exp(-gate_value)));
output[global_idx]=activated_value * up_value;
"""
MATRICES = WorkgroupLimits(32, 1024, 49152, matrices=(MatrixSize(16, 16, 16),))
"""An adapter with subgroup matrices."""


@dataclass
class Sketch:
    """A recording made dispatch by dispatch; buffers by name."""

    ids: dict[str, int] = field(default_factory=dict)
    ops: list[Dispatch] = field(default_factory=list)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    groups: dict[int, BindGroup] = field(default_factory=dict)
    uniforms: dict[int, bytes] = field(default_factory=dict)
    known: dict[str, NBitsWeights] = field(default_factory=dict)
    """Weights that are not of the usual shape, or whose scales are others'; by name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of buffers that are not large."""
    limits: WorkgroupLimits = field(default_factory=WorkgroupLimits)

    def id(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)

    def run(
        self,
        code: str,
        reads: dict[str, str],
        writes: dict[str, str],
        groups: tuple[int, int, int] = (1, 1, 1),
        rows: int = ROWS,
        offset: int = 0,
        told: str = "M",
        uniforms: bytes = b"",
    ) -> None:
        """Dispatch a kernel that binds buffers by the names of its WGSL; with `uniforms`, which `code` declares."""
        number = len(self.ops)
        bound = [*reads.items(), *writes.items()]
        names = {(0, i): name for i, (name, _) in enumerate(bound)}
        access = {(0, i): "read" if i < len(reads) else "read_write" for i in range(len(bound))}
        uniform = self.id(f"uniforms {number}")
        self.uniforms[uniform] = uniforms or struct.pack("<I", rows)
        access[0, len(bound)], names[0, len(bound)] = "uniform", "uniforms"
        entries = [(i, self.id(buffer), offset, 1 << 20) for i, (_, buffer) in enumerate(bound)]
        self.groups[number] = BindGroup((*entries, (len(bound), uniform, 0, len(self.uniforms[uniform]))))
        declared = "" if uniforms else f"struct Uniforms {{\n  {told}: u32\n}};\n"
        self.pipelines[number] = Pipeline(f"kernel {number}", access, declared + code, names)
        self.ops.append(Dispatch(number, (number,), *groups))

    def fused(self, weights: list[str], lasting: list[str], int8: bool = True, rows: int = ROWS) -> Placement:
        writes = tuple(Write(buffer, 0, data) for buffer, data in self.uniforms.items())
        sizes = dict.fromkeys(self.ids.values(), 1 << 20) | {self.id(name): size for name, size in self.sizes.items()}
        recording = Recording(1, (*writes, *self.ops), self.pipelines, self.groups, sizes)
        known = {self.id(name): NBitsWeights(self.id(f"{name} scales"), N, K, 32, int8) for name in weights}
        known |= {self.id(name): found for name, found in self.known.items()}
        return fuse_prefill(recording, self.ops, [self.id(name) for name in lasting], known, rows, self.limits)

    def quantized(self, x: str, to: str) -> None:
        self.run(QUANTIZE, {"input_a": x}, {"output": to, "scales": f"{to} scales"})

    def int8_product(self, x: str, weights: str, y: str, rows: int = ROWS) -> None:
        reads = {"input_a": x, "scales_a": f"{x} scales", "input_b": weights, "scales_b": f"{weights} scales"}
        self.run(PRODUCT, reads, {"output": y}, rows=rows)

    def tiled_product(self, x: str, weights: str, y: str, element: str = "f16", offset: int = 0) -> None:
        """In float, as onnxruntime-web computes it where the model allows no int8."""
        reads = {"input_a": x, "input_b": weights, "scales": f"{weights} scales"}
        self.run(PRODUCT.replace("f16", element), reads, {"output": y}, offset=offset)

    def layered(self, activation: str = ACTIVATION, up_reads: str = "x", rows: int = ROWS) -> None:
        """A gated layer as onnxruntime-web runs it in int8: each product brings its input into int8 itself."""
        for half, x in (("gate", "x"), ("up", up_reads)):
            self.quantized(x, "q")
            self.int8_product("q", f"W {half}", half, rows)
        self.run(activation, {"gate": "gate", "up": "up"}, {"output": "h"})
        self.quantized("h", "q")
        self.int8_product("q", "W down", "y", rows)


def kinds(placement: Placement) -> list[type]:
    return [type(node.what) for node in placement.nodes]


def read_by(sketch: Sketch, placement: Placement, index: int) -> list[str]:
    """The recorded buffers that an operation reads, by name."""
    names = {id_: name for name, id_ in sketch.ids.items()}
    places = [placement.places[value] for value in placement.nodes[index].reads]
    return [names[place.id] for place in places if place.kind == "recorded"]
