"""Which products of a recorded prefill run become ours, for each of onnxruntime-web's product kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.tape import MatVec, NBitsWeights, Recorded
from capstan.tape.ops.matmul import MatMul, Quantize
from capstan.tape.ops.matmul_matrices import MatrixMatMul
from tests.unit.prefill_sketch import ACTIVATION, MATRICES, PRODUCT, QUANTIZE, ROWS, K, N, Sketch, kinds, read_by


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


@pytest.mark.parametrize("rows", [2, 32])
def test_products_of_few_rows_are_those_of_decode_steps(rows: int) -> None:
    """From what was in float before it was brought into int8, and gated."""
    sketch = Sketch()
    sketch.layered(rows=rows)
    placement = sketch.fused(["W gate", "W up", "W down"], ["y"], rows=rows)
    assert kinds(placement) == [MatVec, MatVec]
    gated, down = (node.what for node in placement.nodes)
    assert isinstance(gated, MatVec)
    assert isinstance(down, MatVec)
    assert (gated.rows, gated.up) == (rows, (sketch.id("W up"), sketch.id("W up scales")))
    assert (down.rows, down.element, down.weights) == (rows, "f16", sketch.id("W down"))
    assert read_by(sketch, placement, 0) == ["x"]


def test_halves_that_others_read_are_not_joined() -> None:
    sketch = Sketch()
    sketch.layered()
    sketch.run("copy", {"a": "gate"}, {"b": "z"})
    placement = sketch.fused(["W gate", "W up", "W down"], ["y", "z"])
    assert kinds(placement) == [Quantize, MatMul, MatMul, Recorded, Quantize, MatMul, Recorded]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((64, 1, 1), [Quantize, MatMul]),
        ((1, 191, 1), [Quantize, MatMul]),
        ((192, 1, 1), [Recorded, Recorded]),
        ((16, 12, 1), [Recorded, Recorded]),
        ((8, 8, 3), [Recorded, Recorded]),
    ],
)
def test_products_by_subgroup_matrices_are_replaced_where_they_leave_a_gpu_idle(
    groups: tuple[int, int, int], expected: list[type]
) -> None:
    sketch = Sketch()
    sketch.run("layout", {"input_a": "x"}, {"output_a": "a"})
    reads = {"input_a": "a", "input_b": "W", "scales_b": "W scales"}
    sketch.run(PRODUCT, reads, {"output": "y"}, groups=groups)
    placement = sketch.fused(["W"], ["y"])
    assert kinds(placement) == expected
    if expected[0] is Quantize:
        assert read_by(sketch, placement, 0) == ["x"]


def test_other_products_are_replaced_however_many_workgroups_they_have() -> None:
    sketch = Sketch()
    sketch.quantized("x", "q")
    reads = {"input_a": "q", "scales_a": "q scales", "input_b": "W", "scales_b": "W scales"}
    sketch.run(PRODUCT, reads, {"output": "y"}, groups=(1000, 1, 1))
    reads = {"input_a": "x", "input_b": "V", "scales": "V scales"}
    sketch.run(PRODUCT, reads, {"output": "z"}, groups=(1000, 1, 1))
    assert kinds(sketch.fused(["W", "V"], ["y", "z"])) == [Quantize, MatMul, Quantize, MatMul]


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


def test_products_have_scratch_for_int8_and_for_what_they_make() -> None:
    sketch = Sketch()
    sketch.layered()
    placement = sketch.fused(["W gate", "W up", "W down"], ["y"])
    first, gated, second, _ = placement.nodes
    made = [placement.places[value] for node in (first, gated, second) for value in node.writes]
    assert {place.kind for place in made} == {"scratch"}
    # The gated half is [ROWS, N] in float16, as large as the int8 of x [ROWS, K] doubled.
    assert [placement.scratch[place.id] for place in made] == [
        *(ROWS * K, ROWS * K // 8),
        ROWS * N * 2,
        *(ROWS * K, ROWS * K // 8),
    ]


def test_a_product_in_float32() -> None:
    sketch = Sketch(sizes={"y": ROWS * N * 4})
    sketch.tiled_product("x", "W", "y", "f32")
    first, product = (node.what for node in sketch.fused(["W"], ["y"]).nodes)
    assert isinstance(first, Quantize)
    assert isinstance(product, MatMul)
    assert (first.group, first.element) == (32, "f32")
    assert (product.n, product.k, product.block, product.element) == (N, K, 32, "f32")


@pytest.mark.parametrize(("element", "bytes_"), [("f16", 2), ("f32", 4)])
def test_a_product_whose_output_has_no_room_for_all_rows_is_another(element: str, bytes_: int) -> None:
    for size, expected in ((ROWS * N * bytes_, [Quantize, MatMul]), (ROWS * N * bytes_ - 4, [Recorded])):
        sketch = Sketch(sizes={"y": size})
        sketch.tiled_product("x", "W", "y", element)
        assert kinds(sketch.fused(["W"], ["y"])) == expected


@pytest.mark.parametrize(("n", "k", "block"), [(N, 48, 16), (N, 80, 16), (N, 96, 48), (N, 48, 32), (510, K, 32)])
def test_shapes_that_the_kernel_does_not_cover_stay_as_recorded(n: int, k: int, block: int) -> None:
    sketch = Sketch()
    sketch.tiled_product("x", "W", "y")
    weights = NBitsWeights(sketch.id("W scales"), N, K, 32, int8=True)
    sketch.known["W"] = weights
    assert kinds(sketch.fused([], ["y"])) == [Quantize, MatMul]
    sketch.known["W"] = replace(weights, n=n, k=k, block=block)
    assert kinds(sketch.fused([], ["y"])) == [Recorded]


def test_rows_that_are_no_whole_groups_of_int8_stay_as_recorded() -> None:
    sketch = Sketch()
    sketch.quantized("x", "q")
    sketch.int8_product("q", "W", "y")
    sketch.known["W"] = NBitsWeights(sketch.id("W scales"), N, 96, 32, int8=True)
    assert kinds(sketch.fused([], ["y"])) == [Recorded, Recorded]


def test_a_product_by_other_scales_is_another() -> None:
    sketch = Sketch()
    sketch.tiled_product("x", "W", "y")
    sketch.known["W"] = NBitsWeights(sketch.id("V scales"), N, K, 32, int8=True)
    assert kinds(sketch.fused([], ["y"])) == [Recorded]


def test_weights_that_the_run_writes_are_not_taken_for_constant() -> None:
    sketch = Sketch()
    sketch.tiled_product("x", "W", "y")
    sketch.run("change", {"a": "z"}, {"b": "W"})
    assert kinds(sketch.fused(["W"], ["y", "W"])) == [Recorded, Recorded]


@pytest.mark.parametrize("extra", ["bias", "zero_points"])
def test_a_product_that_reads_more_is_another(extra: str) -> None:
    sketch = Sketch()
    reads = {"input_a": "x", "input_b": "W", "scales": "W scales", extra: "more"}
    sketch.run(PRODUCT, reads, {"output": "y"})
    assert kinds(sketch.fused(["W"], ["y"])) == [Recorded]


def test_a_part_of_a_buffer_is_not_what_a_replacement_would_bind() -> None:
    sketch = Sketch()
    sketch.tiled_product("x", "W", "y", offset=256)
    assert kinds(sketch.fused(["W"], ["y"])) == [Recorded]


@pytest.mark.parametrize(
    ("code", "writes"),
    [
        ("quantize in another way", {"output": "q", "scales": "q scales"}),
        (QUANTIZE, {"other": "q", "scales": "q scales"}),
    ],
)
def test_int8_that_was_made_in_an_unknown_way_is_multiplied_as_it_was(code: str, writes: dict[str, str]) -> None:
    sketch = Sketch()
    sketch.run(code, {"input_a": "x"}, writes)
    sketch.int8_product("q", "W", "y")
    assert kinds(sketch.fused(["W"], ["y"], int8=False)) == [Recorded, Recorded]
    assert kinds(sketch.fused(["W"], ["y"], int8=True)) == [Recorded, Recorded]


def test_int8_may_be_asked_for_by_the_recorded_kernel_alone() -> None:
    sketch = Sketch()
    sketch.quantized("x", "q")
    sketch.int8_product("q", "W", "y")
    assert kinds(sketch.fused(["W"], ["y"], int8=False)) == [Quantize, MatMul]


class TestSubgroupMatrices:
    def test_products_take_float16_as_it_is_however_the_recorded_ones_multiply(self) -> None:
        sketch = Sketch(limits=MATRICES)
        sketch.layered()
        sketch.tiled_product("y", "V", "z")
        sketch.run("layout", {"input_a": "z"}, {"output_a": "a"})
        reads = {"input_a": "a", "input_b": "W", "scales_b": "W scales"}
        sketch.run(PRODUCT, reads, {"output": "end"}, groups=(1000, 1, 1))
        placement = sketch.fused(["W gate", "W up", "W down", "V", "W"], ["end"], int8=False)
        assert kinds(placement) == [MatrixMatMul] * 4
        gated, down, *_ = (node.what for node in placement.nodes)
        assert isinstance(gated, MatrixMatMul)
        assert isinstance(down, MatrixMatMul)
        assert (gated.weights, gated.scales) == (sketch.id("W gate"), sketch.id("W gate scales"))
        assert gated.up == (sketch.id("W up"), sketch.id("W up scales"))
        assert (down.rows, down.n, down.k, down.block, down.up) == (ROWS, N, K, 32, None)
        assert read_by(sketch, placement, 0) == ["x"]

    def test_products_in_float32_and_adapters_without_them_compute_in_int8(self) -> None:
        for limits, element in ((MATRICES, "f32"), (replace(MATRICES, matrices=()), "f16")):
            sketch = Sketch(limits=limits)
            sketch.tiled_product("x", "W", "y", element)
            assert kinds(sketch.fused(["W"], ["y"])) == [Quantize, MatMul]

    @pytest.mark.parametrize("bits", [4, 8])
    @pytest.mark.parametrize("way", ["tiled", "plain", "int8"])
    def test_zero_points_are_taken_in_however_the_recorded_ones_multiply(self, way: str, bits: int) -> None:
        sketch = Sketch(limits=MATRICES)
        reads = {"input_b": "W", "scales" if way == "tiled" else "scales_b": "W scales", "zero_points": "W zeros"}
        if way == "int8":
            sketch.quantized("x", "q")
            reads = {"input_a": "q", "scales_a": "q scales", **reads}
        else:
            reads = {"input_a": "x", **reads}
        sketch.run(PRODUCT, reads, {"output": "y"})
        weights = NBitsWeights(sketch.id("W scales"), N, K, 16, False, bits, sketch.id("W zeros"))
        sketch.known["W"] = weights
        placement = sketch.fused([], ["y"])
        what = MatrixMatMul(sketch.id("W"), weights.scales, ROWS, N, K, 16, bits=bits, zeros=sketch.id("W zeros"))
        assert [node.what for node in placement.nodes] == [what]
        assert read_by(sketch, placement, 0) == ["x"]
        sketch.limits = replace(MATRICES, matrices=())
        assert set(kinds(sketch.fused([], ["y"]))) == {Recorded}, "the kernel for int8 has blocks of 32 at least"
        sketch.known["W"] = replace(weights, block=64, int8=True)
        made = [node.what for node in sketch.fused([], ["y"]).nodes]
        assert len(made) == 2
        assert made[1] == MatMul(
            sketch.id("W"), weights.scales, ROWS, N, K, 64, "f16", bits=bits, zeros=sketch.id("W zeros")
        )

    @pytest.mark.parametrize("zeros", [None, "others"])
    def test_a_product_by_other_zero_points_is_another(self, zeros: str | None) -> None:
        sketch = Sketch(limits=MATRICES)
        reads = {"input_a": "x", "input_b": "W", "scales": "W scales", "zero_points": "W zeros"}
        sketch.run(PRODUCT, reads, {"output": "y"})
        found = None if zeros is None else sketch.id(zeros)
        sketch.known["W"] = NBitsWeights(sketch.id("W scales"), N, K, 32, True, 4, found)
        assert kinds(sketch.fused([], ["y"])) == [Recorded]

    def test_halves_with_zero_points_are_joined(self) -> None:
        sketch = Sketch(limits=MATRICES)
        for half in ("gate", "up"):
            names = {"input_b": f"W {half}", "scales_b": f"{half} scales", "zero_points": f"{half} zeros"}
            sketch.run(PRODUCT, {"input_a": "x", **names}, {"output": half})
            scales, zeros = sketch.id(f"{half} scales"), sketch.id(f"{half} zeros")
            sketch.known[f"W {half}"] = NBitsWeights(scales, N, K, 32, True, 8, zeros)
        sketch.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "h"})
        (node,) = sketch.fused([], ["h"]).nodes
        assert isinstance(node.what, MatrixMatMul)
        assert node.what.zeros == sketch.id("gate zeros")
        assert node.what.up == tuple(map(sketch.id, ("W up", "up scales", "up zeros")))
        bound = node.what.kernels(node.reads, node.writes, MATRICES)[0]
        assert list(bound.bindings) == ["x", "y", "weights", "scales", "zeros", "weights_up", "scales_up", "zeros_up"]

    def test_int8_made_in_an_unknown_way_stays(self) -> None:
        sketch = Sketch(limits=MATRICES)
        sketch.run("quantize in another way", {"input_a": "x"}, {"output": "q", "scales": "q scales"})
        sketch.int8_product("q", "W", "y")
        assert kinds(sketch.fused(["W"], ["y"])) == [Recorded, Recorded]

    def test_halves_of_different_inputs_are_not_joined(self) -> None:
        sketch = Sketch(limits=MATRICES)
        sketch.layered(up_reads="z")
        placement = sketch.fused(["W gate", "W up", "W down"], ["y"])
        assert kinds(placement) == [MatrixMatMul, MatrixMatMul, Recorded, MatrixMatMul]


SEPARATE = [Quantize, MatMul, MatMul, Recorded, Quantize, MatMul]


class TestGates:
    @pytest.mark.parametrize(
        "line", ["let activated_value = gate_value * (one / (one + exp(-gate_value)));", "activated_value * up_value"]
    )
    def test_another_activation_is_not_joined(self, line: str) -> None:
        sketch = Sketch()
        assert line in ACTIVATION
        sketch.layered(ACTIVATION.replace(line, "something else"))
        assert kinds(sketch.fused(["W gate", "W up", "W down"], ["y"])) == SEPARATE

    def test_halves_of_different_inputs_are_not_joined(self) -> None:
        sketch = Sketch()
        sketch.layered(up_reads="z")
        placement = sketch.fused(["W gate", "W up", "W down"], ["y"])
        assert kinds(placement) == [Quantize, MatMul, Quantize, MatMul, Recorded, Quantize, MatMul]
        assert [read_by(sketch, placement, index) for index in (0, 2)] == [["x"], ["z"]]

    def test_halves_of_different_blocks_are_not_joined(self) -> None:
        sketch = Sketch()
        sketch.layered()
        sketch.known["W up"] = NBitsWeights(sketch.id("W up scales"), N, K, 64, int8=True)
        assert kinds(sketch.fused(["W gate", "W down"], ["y"])) == SEPARATE

    @pytest.mark.parametrize("half", ["gate", "up"])
    def test_a_half_that_outlives_the_run_is_not_joined(self, half: str) -> None:
        sketch = Sketch()
        sketch.layered()
        assert kinds(sketch.fused(["W gate", "W up", "W down"], ["y", half])) == SEPARATE

    @pytest.mark.parametrize("half", ["gate", "up"])
    def test_a_half_that_others_read_is_not_joined(self, half: str) -> None:
        sketch = Sketch()
        sketch.layered()
        sketch.run("copy", {"a": half}, {"b": "z"})
        assert kinds(sketch.fused(["W gate", "W up", "W down"], ["y", "z"])) == [*SEPARATE, Recorded]

    @pytest.mark.parametrize("half", ["gate", "up"])
    def test_a_half_that_is_no_product_of_ours_is_not_joined(self, half: str) -> None:
        other = {"gate": "up", "up": "gate"}[half]
        sketch = Sketch()
        # Nobody reads a part of the other kernel's result.
        sketch.run("split", {"a": "z"}, {"b": half, "c": "unread"})
        sketch.tiled_product("x", f"W {other}", other)
        sketch.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "h"})
        assert kinds(sketch.fused([f"W {other}"], ["h"])) == [Recorded, Quantize, MatMul, Recorded]

    @pytest.mark.parametrize("half", ["gate", "up"])
    def test_a_half_from_outside_the_run_is_not_joined(self, half: str) -> None:
        other = {"gate": "up", "up": "gate"}[half]
        sketch = Sketch()
        sketch.tiled_product("x", f"W {other}", other)
        sketch.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "h"})
        assert kinds(sketch.fused([f"W {other}"], ["h"])) == [Quantize, MatMul, Recorded]

    def test_a_product_that_is_both_halves_is_not_joined(self) -> None:
        sketch = Sketch()
        sketch.tiled_product("x", "W", "gate")
        sketch.run(ACTIVATION, {"gate": "gate", "up": "gate"}, {"output": "h"})
        assert kinds(sketch.fused(["W"], ["h"])) == [Quantize, MatMul, Recorded]


def test_one_input_in_int8_by_two_rules_is_made_twice() -> None:
    sketch = Sketch()
    sketch.quantized("x", "q")
    sketch.int8_product("q", "W", "y")
    sketch.tiled_product("x", "V", "z")
    placement = sketch.fused(["W", "V"], ["y", "z"])
    assert kinds(placement) == [Quantize, MatMul, Quantize, MatMul]
    groups = [node.what.group for node in placement.nodes if isinstance(node.what, Quantize)]
    assert groups == [128, 32]


def test_two_inputs_are_brought_into_int8_each() -> None:
    sketch = Sketch()
    for x, y in (("x", "y"), ("y", "z")):
        sketch.quantized(x, "q")
        sketch.int8_product("q", "W", y)
    placement = sketch.fused(["W"], ["y", "z"])
    assert kinds(placement) == [Quantize, MatMul, Quantize, MatMul]
    assert [read_by(sketch, placement, index) for index in (0, 2)] == [["x"], ["y"]]


def test_an_input_that_changes_in_between_is_brought_into_int8_anew() -> None:
    sketch = Sketch()
    sketch.tiled_product("x", "W", "gate")
    sketch.run("change", {"a": "gate"}, {"b": "x"})
    sketch.tiled_product("x", "V", "up")
    sketch.run(ACTIVATION, {"gate": "gate", "up": "up"}, {"output": "h"})
    placement = sketch.fused(["W", "V"], ["h"])
    assert kinds(placement) == [Quantize, MatMul, Recorded, Quantize, MatMul, Recorded]
