"""Products of a recorded prefill run add what their minima add, with whatever kernel multiplies their integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from capstan.tape import MatVec, NBitsWeights, Recorded, WorkgroupLimits
from capstan.tape.ops.matmul import MatMul, Quantize
from capstan.tape.ops.matmul_matrices import MatrixMatMul
from capstan.tape.placement import Placement
from capstan.tape.prefill_graph import Moved
from tests.unit.prefill_sketch import ACTIVATION, MATRICES, ROWS, N, Sketch, kinds, read_by
from tests.unit.recorded_kernels import KERNELS, pack_uniforms

K = 1024
"""So many that subgroup matrices compute the product by the minima of blocks of 32, too."""


@dataclass(frozen=True)
class Way:
    """An adapter and a type, and what becomes of the one product of a run."""

    ours: list[type]
    rows: int = ROWS
    element: str = "f16"
    limits: WorkgroupLimits = MATRICES
    int8: bool = False


WITHOUT = replace(MATRICES, matrices=())
WAYS = {
    "few rows": Way([MatVec], rows=8, element="f32"),
    "subgroup matrices": Way([MatrixMatMul]),
    "int8": Way([Quantize, MatMul], element="f32", int8=True),
    "int8 without subgroup matrices": Way([Quantize, MatMul], limits=WITHOUT, int8=True),
    "none": Way([Recorded] * 4, limits=WITHOUT),
}


class Affine(Sketch):
    """A run with products by weights with minima."""

    def product(self, way: Way, x: str, weights: str, y: str, block: int = 32, sums: str = "") -> None:
        """The product of x by the integers, that of the blocks' sums of x by the minima, and the sum of both. `sums`
        names some that are made already."""
        array = f"array<vec4<{way.element}>>"
        self.known[weights] = NBitsWeights(
            self.id(f"{weights} scales"), N, K, block, way.int8, minima=self.id(f"{weights} minima")
        )
        reads = {"input_a": x, "input_b": weights, "scales": f"{weights} scales"}
        self.run(f"output: {array}", reads, {"output": f"{y} above"}, rows=way.rows)
        if not sums:
            self.run("", {"_A": x}, {"output": f"{y} sums"}, rows=way.rows)
        below = {"a": sums or f"{y} sums", "b": f"{weights} minima"}
        self.dense(way, below, f"{y} below", K // block)
        arrays = "".join(f"var<storage, read> {name}: {array};" for name in ("input_a", "input_b"))
        add = f"input_a: {array}; input_b: {array}; output[global_idx]=a + b;{arrays}"
        both = {"input_a": f"{y} above", "input_b": f"{y} below"}
        self.run(add, both, {"output": y}, rows=way.rows * N, told="element_count")

    def dense(self, way: Way, reads: dict[str, str], y: str, k: int) -> None:
        """One of onnxruntime-web's products by dense weights; with rows of whole vectors, the one that becomes ours."""
        if k % 4:
            self.run("", reads, {"output": y}, rows=way.rows)
            return
        told: dict[str, Any] = {"a_shape": (1, way.rows, k // 4), "b_shape": (k, N // 4)}
        told |= {"output_shape": (1, way.rows, N // 4), "dim_a_outer": way.rows, "dim_b_outer": N, "dim_inner": k}
        self.kernel(way, "matmul", reads, y, told)

    def kernel(self, way: Way, kind: str, reads: dict[str, str], y: str, told: dict[str, Any]) -> None:
        """One of onnxruntime-web's kernels."""
        kernel = KERNELS[kind]
        code = kernel.code.replace("array<vec4<f32>>", f"array<vec4<{way.element}>>")
        self.run(code, reads, {kernel.writes[0]: y}, uniforms=pack_uniforms(kernel.fields, told))

    def gated(self, way: Way, size: int | None = None) -> None:
        """A gated layer, whose SiLU and multiplication onnxruntime-web runs apart."""
        size = size or way.rows * N
        self.product(way, "x", "W", "gate")
        self.product(way, "x", "V", "up", sums="gate sums")
        self.kernel(way, "silu", {"x": "gate"}, "silu", {"vec_size": way.rows * N // 4, "attr": 1.0})
        told = {"vec_size": size // 4, "element_count": size}
        self.kernel(way, "multiply", {"input_a": "up", "input_b": "silu"}, "y", told)


@pytest.mark.parametrize("block", [32, 1024])
@pytest.mark.parametrize("name", WAYS)
def test_products_add_what_their_minima_add(name: str, block: int) -> None:
    """The one by minima is ours in float16 and in few rows. Without our kernel for the other nothing is lost."""
    way = WAYS[name]
    sketch = Affine(limits=way.limits)
    sketch.product(way, "x", "W", "y", block)
    placement = sketch.fused([], ["y"], rows=way.rows)
    assert kinds(placement) == way.ours
    if Recorded in way.ours:
        return
    assert read_by(sketch, placement, 0) == ["x"]
    last = placement.nodes[-1]
    what = last.what
    assert isinstance(what, MatVec | MatrixMatMul | MatMul)
    assert (what.rows, what.weights, what.minima) == (way.rows, sketch.id("W"), sketch.id("W minima"))
    assert last.origins == {0, 1, 2, 3}
    assert placement.places[last.writes[0]].id == sketch.id("y")


def test_a_sum_in_the_buffer_of_x_is_copied_there() -> None:
    """As onnxruntime-web places it where the product is as wide as x."""
    sketch, way = Affine(limits=MATRICES), WAYS["subgroup matrices"]
    sketch.run("copy", {"a": "w"}, {"b": "x"})
    sketch.product(way, "x", "W", "x")
    sketch.run("copy", {"a": "x"}, {"b": "z"})
    placement = sketch.fused([], ["z"])
    assert kinds(placement) == [Recorded, MatrixMatMul, Moved, Recorded]
    assert [read_by(sketch, placement, index) for index in (1, 2)] == [["x"], []]
    assert "x" in read_by(sketch, placement, 3)


def test_products_of_one_input_share_its_sums() -> None:
    sketch, way = Affine(limits=MATRICES), WAYS["subgroup matrices"]
    sketch.product(way, "x", "W", "y")
    sketch.product(way, "x", "V", "z", sums="y sums")
    placement = sketch.fused([], ["y", "z"])
    assert kinds(placement) == [MatrixMatMul] * 2
    assert [node.origins for node in placement.nodes] == [{0, 1, 2, 3}, {1, 4, 5, 6}]


def test_sums_that_others_read_stay() -> None:
    sketch, way = Affine(limits=MATRICES), WAYS["subgroup matrices"]
    sketch.product(way, "x", "W", "y")
    sketch.run("copy", {"a": "y sums"}, {"b": "z"})
    assert kinds(sketch.fused([], ["y", "z"])) == [Recorded, MatrixMatMul, Recorded]


def minima(placement: Placement) -> list[int | None]:
    """Those of each product of ours by integers."""
    found = (node.what for node in placement.nodes)
    return [what.minima for what in found if isinstance(what, MatMul | MatrixMatMul) and what.scales is not None]


@pytest.mark.parametrize("name", ["subgroup matrices", "int8"])
def test_sums_of_something_else_are_not_joined(name: str) -> None:
    sketch, way = Affine(limits=WAYS[name].limits), WAYS[name]
    sketch.product(way, "w", "V", "y")
    sketch.product(way, "x", "W", "z", sums="y sums")
    assert minima(sketch.fused([], ["y", "z"])) == [sketch.id("V minima"), None]


@pytest.mark.parametrize("name", ["subgroup matrices", "int8"])
def test_minima_of_other_weights_are_not_joined(name: str) -> None:
    sketch, way = Affine(limits=WAYS[name].limits), WAYS[name]
    sketch.product(way, "x", "W", "y")
    sketch.known["W"] = replace(sketch.known["W"], minima=sketch.id("V minima"))
    assert minima(sketch.fused([], ["y"])) == [None]


@pytest.mark.parametrize("name", ["few rows", "subgroup matrices", "int8"])
def test_one_product_computes_both_halves_of_a_gated_layer(name: str) -> None:
    way = WAYS[name]
    sketch = Affine(limits=replace(way.limits, buffers=10))
    sketch.gated(way)
    placement = sketch.fused([], ["y"], rows=way.rows)
    assert kinds(placement) == way.ours
    what = placement.nodes[-1].what
    assert isinstance(what, MatVec | MatrixMatMul | MatMul)
    assert what.minima == sketch.id("W minima")
    assert what.up == (sketch.id("V"), sketch.id("V scales"), None, sketch.id("V minima"))
    assert placement.nodes[-1].origins == set(range(9))


def test_a_gate_of_more_buffers_than_a_kernel_may_bind_stays_as_recorded() -> None:
    way = WAYS["int8"]
    sketch = Affine(limits=replace(way.limits, buffers=8))
    sketch.gated(way)
    assert kinds(sketch.fused([], ["y"])) == [Quantize, MatMul, MatMul, Recorded, Recorded]


def test_a_gate_over_other_sizes_stays_as_recorded() -> None:
    sketch, way = Affine(limits=MATRICES), WAYS["subgroup matrices"]
    sketch.gated(way, size=way.rows * N // 2)
    assert kinds(sketch.fused([], ["y"])) == [MatrixMatMul, MatrixMatMul, Recorded, Recorded]


@pytest.mark.parametrize("which", ["gate", "up"])
def test_halves_of_which_one_has_no_minima_are_not_joined(which: str) -> None:
    """As in a file whose halves are of Q4_0 and Q4_1."""
    sketch, way = Affine(limits=MATRICES), WAYS["subgroup matrices"]
    sketch.product(way, "x", "W", "affine")
    weights = NBitsWeights(sketch.id("V scales"), N, K, 32, way.int8)
    sketch.known["V"] = weights
    sketch.tiled_product("x", "V", "other")
    gate, up = ("affine", "other") if which == "gate" else ("other", "affine")
    sketch.run(ACTIVATION, {"gate": gate, "up": up}, {"output": "y"})
    assert kinds(sketch.fused([], ["y"])) == [MatrixMatMul, MatrixMatMul, Recorded]
