"""How prompts are cut into runs, what products a graph has, and what the shaders ask of the cut of a product."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan import graph
from capstan.device.prefill_tape import LEAST_FULL, Run, cut_prompt
from capstan.errors import TapeError
from capstan.graph.onnx_pb2 import ModelProto
from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.matmul import MatMul
from capstan.tape.matmul_plan import plan_matmul, tune_matmul

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama" / "model.onnx"


@pytest.mark.parametrize("count", [1, 15, 16, 17, 47, 48, 49, 64, 100, 127, 128, 200, 1000])
@pytest.mark.parametrize("lengths", [(), (64,), (64, 32, 16)])
def test_runs_cover_a_prompt_in_order(count: int, lengths: tuple[int, ...]) -> None:
    runs = cut_prompt(count, 64, lengths)
    done = 0
    for run in runs:
        assert 0 <= run.start <= done < run.start + run.length <= count
        assert run.length <= 64
        assert run.start == done or (run.length in lengths and run.start + run.length - done >= LEAST_FULL * run.length)
        done = run.start + run.length
    assert done == count
    assert all(run.length == 64 for run in runs[:-1])


def test_the_rest_reaches_back_to_the_shortest_run_that_has_a_tape() -> None:
    assert cut_prompt(92, 64, ()) == [Run(0, 64), Run(64, 28)]
    assert cut_prompt(92, 64, (64, 32, 16)) == [Run(0, 64), Run(60, 32)]
    assert cut_prompt(28, 64, (64, 32, 16)) == [Run(0, 28)], "there is nothing to reach back to"


def nano() -> ModelProto:
    found = ModelProto()
    found.CopyFrom(graph.parse(NANO.read_bytes()))
    return found


def test_the_products_of_a_graph() -> None:
    model = nano()
    products = graph.int4_products(model)
    assert [(p.n, p.k, p.block, p.int8) for p in products[:5]] == [
        (128, 64, 32, False),
        (64, 64, 32, False),
        (128, 64, 32, False),
        (128, 64, 32, False),
        (64, 128, 32, False),
    ]
    assert products[0].weights.endswith("qkv_proj.MatMul.weight_Q4")
    assert products[0].scales.endswith("qkv_proj.MatMul.weight_scales")


def test_products_with_zero_points_or_shared_weights_are_left_out() -> None:
    model = nano()
    every = graph.int4_products(model)
    first, second, third = [node for node in model.graph.node if node.op_type == "MatMulNBits"][:3]
    first.input.append("zero_points")
    third.input[1] = second.input[1]
    left = {product.weights for product in graph.int4_products(model)}
    assert len(left) == len(every) - 3
    assert second.input[1] not in left


@pytest.mark.parametrize(
    "limits", [WorkgroupLimits(), WorkgroupLimits(32, 1024, 49152), WorkgroupLimits(software=True)]
)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("k", [32, 96, 576, 896, 2048, 8192])
def test_a_cut_keeps_the_shaders_limits(k: int, gated: bool, limits: WorkgroupLimits) -> None:
    tuning = tune_matmul(k, limits)
    assert k % (32 * tuning.runs) == 0
    assert tuning.runs % tuning.slices == 0
    assert (tuning.threads[0] % 4, tuning.threads[1] % 8, tuning.thread[1] % 8) == (0, 0, 0)
    assert tuning.memory <= limits.memory
    assert tuning.workgroup <= limits.threads
    rows, columns = tuning.tile
    constants = tuning.constants(gated)
    assert constants["A_LOADS"] * tuning.workgroup == 2 * tuning.runs * rows
    assert constants["B_LOADS"] * tuning.workgroup == tuning.runs * columns
    assert constants["MEETING"] * constants["PARTS"] == tuning.thread[0]
    what = MatMul(1, 2, 100, 1000, k, 32, "f16", (3, 4) if gated else None)
    counts = plan_matmul(what, limits).counts
    assert not callable(counts)
    x, y, z = counts
    assert (x * columns // (1 + gated) >= 1000, y * rows >= 100, z) == (True, True, 1)


def test_workgroups_too_small_for_any_cut_are_refused() -> None:
    with pytest.raises(TapeError, match="no cut"):
        tune_matmul(2048, WorkgroupLimits(memory=4096))
