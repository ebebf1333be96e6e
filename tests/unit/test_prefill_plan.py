"""How prompts are cut into runs, what products a graph has, and what the shaders ask of the cut of a product."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from capstan import graph
from capstan.device.webgpu.tapes.prefill_tapes import LEAST_FULL, MOST_SHORT, Run, compared_after, cut_prompt
from capstan.errors import TapeError
from capstan.graph.onnx_pb2 import ModelProto
from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.matmul import MatMul, MatMulTuning, Quantize, plan_matmul, plan_quantize, tune_matmul
from capstan.tape.ops.packed import weights_of
from tests.unit.shader_declarations import PACKED, declared_constants, workgroup_bytes

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama" / "model.onnx"


@pytest.mark.parametrize("count", [1, 15, 16, 17, 47, 48, 49, 64, 100, 127, 128, 200, 1000])
@pytest.mark.parametrize("lengths", [(), (64,), (64, 32, 16)])
def test_runs_cover_a_prompt_in_order(count: int, lengths: tuple[int, ...]) -> None:
    runs = cut_prompt(count, 64, lengths)
    done = 0
    for run in runs:
        assert 0 <= run.start <= done < run.start + run.length <= count
        assert run.length <= 64
        full = run.start + run.length - done >= LEAST_FULL * run.length
        assert run.start == done or (run.length in lengths and (full or run.length == min(lengths)))
        done = run.start + run.length
    assert done == count
    whole = count // 64
    assert all(run.length == 64 for run in runs[:whole])
    assert len(runs) - whole <= MOST_SHORT


def test_the_rest_reaches_back_to_the_shortest_run_that_has_a_tape() -> None:
    assert cut_prompt(92, 64, ()) == [Run(0, 64), Run(64, 28)]
    assert cut_prompt(92, 64, (64, 32, 16)) == [Run(0, 64), Run(60, 32)]


def test_the_rest_of_a_prompt_is_short_runs() -> None:
    lengths = (2048, 1024, 512, 32, 16, 8)
    assert cut_prompt(28, 2048, lengths) == [Run(0, 16), Run(16, 8), Run(20, 8)], "there is no room for one of 32"
    assert cut_prompt(2049, 2048, lengths) == [Run(0, 2048), Run(2041, 8)]
    assert cut_prompt(104, 2048, lengths) == [Run(0, 32), Run(32, 32), Run(64, 32), Run(96, 8)]
    assert cut_prompt(105, 2048, lengths) == [Run(0, 105)], "five runs would not be faster"
    assert cut_prompt(7, 2048, lengths) == [Run(0, 7)], "there is nothing to reach back to"
    assert cut_prompt(20, 2048, (2048, 1024, 512)) == [Run(0, 20)]


def nano() -> ModelProto:
    found = ModelProto()
    found.CopyFrom(graph.parse(NANO.read_bytes()))
    return found


def test_the_products_of_a_graph() -> None:
    model = nano()
    products = graph.nbits_products(model)
    assert [(p.n, p.k, p.block, p.int8) for p in products[:5]] == [
        (128, 64, 32, False),
        (64, 64, 32, False),
        (128, 64, 32, False),
        (128, 64, 32, False),
        (64, 128, 32, False),
    ]
    assert products[0].weights.endswith("qkv_proj.MatMul.weight_Q4")
    assert products[0].scales.endswith("qkv_proj.MatMul.weight_scales")


def test_products_with_a_bias_or_shared_weights_are_left_out() -> None:
    model = nano()
    every = graph.nbits_products(model)
    first, second, third = [node for node in model.graph.node if node.op_type == "MatMulNBits"][:3]
    first.input.extend(["", "", "bias"])
    third.input[1] = second.input[1]
    left = {product.weights for product in graph.nbits_products(model)}
    assert len(left) == len(every) - 3
    assert second.input[1] not in left


def test_products_have_their_bits_and_zero_points() -> None:
    model = graph.parse((NANO.parents[1] / "nano-mixed" / "model.onnx").read_bytes())
    products = graph.nbits_products(model)
    assert {product.bits for product in products} == {4, 8}
    nodes = {node.input[1]: node for node in model.graph.node if node.op_type == "MatMulNBits"}
    assert [product.zeros for product in products] == [nodes[product.weights].input[3] for product in products]


def bound(gated: bool, *more: str) -> list[str]:
    """The bindings of weights."""
    names = [*PACKED, *more]
    return names + [f"{name}_up" for name in names] * gated


def hold_to_the_shader(made: Mapping[str, int]) -> None:
    """Assert the shader's limits on the counts that follow from a cut."""
    workgroup = made["WORKGROUP"]
    # A workgroup loads for one step: halves of runs of x, runs of weights, scales of x.
    assert made["A_LOADS"] * workgroup == 2 * made["RUNS"] * made["TILE_M"]
    assert made["B_LOADS"] * workgroup == made["RUNS"] * made["TILE_N"]
    scales = made["RUNS"] * made["TILE_M"]
    assert scales <= made["S_LOADS"] * workgroup < scales + workgroup
    assert made["SUMS"] == made["TM"] * made["TN"]
    assert (4 * made["FOURS"], 4 * made["OUT_FOURS"]) == (made["TN"], made["COLUMNS"])
    # The sums of slices are joined in as many rows at a time as fit.
    assert made["MEETING"] * made["PARTS"] == made["TM"]
    row = made["FOURS"] * made["THREADS"]
    assert made["MEETING"] * row <= 2 * made["SIZE"]
    assert made["PARTS"] == 1 or 2 * made["MEETING"] * row > 2 * made["SIZE"]
    assert bool(made["SLICED"]) == (made["SLICES"] > 1)


@pytest.mark.parametrize("more", [(), ("zeros",), ("minima",)], ids=str)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "tuning",
    [
        MatMulTuning((8, 8), (4, 8), slices=1, runs=2),
        MatMulTuning((4, 16), (8, 8), slices=2, runs=4),
        MatMulTuning((16, 8), (4, 16), slices=4, runs=4),
        MatMulTuning((16, 16), (8, 8), slices=2, runs=2),
    ],
    ids=str,
)
def test_counts_follow_from_a_cut_as_in_the_shader(tuning: MatMulTuning, gated: bool, more: tuple[str, ...]) -> None:
    given = {"K": 2048, "N": 1000, "M": 100, "BLOCK": 32, "BYTES": gated, "SHIFTED": bool(more)}
    constants, has = {**given, **tuning.constants(gated)}, bound(gated, *more)
    made = declared_constants("matmul_q4", constants, has, half=True)
    hold_to_the_shader(made)
    assert (made["TILE_M"], made["TILE_N"]) == tuning.tile
    assert made["WORKGROUP"] == tuning.workgroup
    assert workgroup_bytes("matmul_q4", constants, has, half=True) == tuning.memory(bool(more))


@pytest.mark.parametrize(
    "limits",
    [
        WorkgroupLimits(),
        WorkgroupLimits(32, 1024, 49152),
        WorkgroupLimits(software=True),
        WorkgroupLimits(0, 256, 12000),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", ["", "zeros", "minima"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("k", [32, 96, 576, 896, 2048, 8192])
def test_a_cut_keeps_the_shaders_limits(k: int, gated: bool, more: str, limits: WorkgroupLimits) -> None:
    up = {"": (3, 4), "zeros": (3, 4, 6), "minima": (3, 4, None, 6)}[more] if gated else None
    has = bound(gated, *[more] * bool(more))
    what = MatMul(1, 2, 100, 1000, k, 32, "f16", up, **dict.fromkeys([more] * bool(more), 5))
    assert sorted(weights_of(what)) == sorted(has)
    plan = plan_matmul(what, limits)
    made = declared_constants(plan.shader, plan.constants, has, half=True)
    assert (made["K"], made["N"], made["M"], made["BLOCK"]) == (k, 1000, 100, 32)
    assert k % (32 * made["RUNS"]) == 0
    assert made["RUNS"] % made["SLICES"] == 0
    assert (made["WM"] % 4, made["WN"] % 8, made["TN"] % 8) == (0, 0, 0)
    workgroup = made["WORKGROUP"]
    assert workgroup <= limits.threads
    memory = workgroup_bytes(plan.shader, plan.constants, has, half=True)
    assert memory == tune_matmul(k, limits, shifted=bool(more)).memory(bool(more)) <= limits.memory
    rows, columns = made["TILE_M"], made["TILE_N"] // (2 if gated else 1)
    hold_to_the_shader(made)
    assert not callable(plan.counts)
    x, y, z = plan.counts
    assert (x - 1) * columns < 1000 <= x * columns
    assert (y - 1) * rows < 100 <= y * rows
    assert z == 1


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize(("rows", "k"), [(1, 32), (8, 256), (9, 384), (100, 8192)])
def test_every_run_of_every_row_is_made_int8_once(rows: int, k: int, group: int) -> None:
    plan = plan_quantize(Quantize(rows, k, group, "f16"))
    assert plan.constants == {"K": k, "M": rows, "GROUPED": group == 128}
    assert not callable(plan.counts)
    # A workgroup has 8 rows and 8 runs.
    x, y, z = plan.counts
    assert (x - 1) * 8 < rows <= x * 8
    assert (y - 1) * 8 < k // 32 <= y * 8
    assert z == 1


@pytest.mark.parametrize(
    ("k", "limits"),
    [(2048, WorkgroupLimits(memory=4096)), (2048, WorkgroupLimits(threads=16)), (2064, WorkgroupLimits())],
    ids=["memory", "threads", "part of a run"],
)
def test_what_no_cut_fits_is_refused(k: int, limits: WorkgroupLimits) -> None:
    with pytest.raises(
        TapeError, match=f"rows of {k} elements and .* of {limits.threads} threads with {limits.memory} bytes"
    ):
        tune_matmul(k, limits)


def test_a_cut_that_just_fits_is_taken() -> None:
    wide = tune_matmul(2048, WorkgroupLimits(32, 1024, 49152))
    assert tune_matmul(2048, WorkgroupLimits(0, wide.workgroup, wide.memory(False))) == wide
    assert tune_matmul(2048, WorkgroupLimits(0, wide.workgroup - 1, wide.memory(False))) != wide
    assert tune_matmul(2048, WorkgroupLimits(0, wide.workgroup, wide.memory(False) - 1)) != wide


@pytest.mark.parametrize("k", [2048, 2080], ids=["even", "odd"])
def test_a_processor_gets_a_smaller_cut_and_other_adapters_one_tile_for_any_number_of_runs(k: int) -> None:
    software, other = (tune_matmul(k, WorkgroupLimits(0, 1024, 49152, software=flag)) for flag in (True, False))
    assert software.workgroup < other.workgroup
    assert software.memory(True) < other.memory(True)
    assert other.tile == tune_matmul(2048, WorkgroupLimits(0, 1024, 49152)).tile


@pytest.mark.parametrize(
    ("length", "capacity", "window", "after"),
    [
        (512, 4096, 0, [0, 512]),
        (512, 4096, 512, [0, 512]),
        (512, 4096, 1024, [0, 512, 1024]),
        (512, 1280, 1024, [0, 512, 768]),
        (512, 512, 96, [0]),
    ],
)
def test_runs_are_compared_past_the_longest_window(length: int, capacity: int, window: int, after: list[int]) -> None:
    assert compared_after(length, capacity, window) == after
