"""Outputs that go to the host: one submit and one map, however many they are; seen at WebGPU's prototypes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.browser.page_scripts import PageScripts
from tests.onnx_models import F32, I32, Value, build, model

pytestmark = pytest.mark.own_page

WAYS = ["run", "out", "cpu", "arrays", "host_accessible"]
ONE = {"submits": 1, "readbacks": 1, "create_buffer": 0}
NOTHING = {"submits": 0, "readbacks": 0, "create_buffer": 0}


def several(count: int, depth: int = 1) -> onnx.ModelProto:
    """y0 = x, y1 = x + 1, ...; in a chain of `depth` additions each, depth - 1 more."""
    nodes = []
    for i in range(count):
        names = ["x", *(f"h{i}_{j}" for j in range(depth - 1)), f"y{i}"]
        steps = pairwise(names)
        nodes += [helper.make_node("Add", [a, f"c{i}" if a == "x" else "one"], [b]) for a, b in steps]
    outputs: list[Value] = [(f"y{i}", F32, ["n"]) for i in range(count)]
    weights = {f"c{i}": np.array([i], np.float32) for i in range(count)}
    return build(nodes, [("x", F32, ["n"])], outputs, **weights, one=np.ones(1, np.float32))


def text(made: onnx.ModelProto) -> str:
    return b64encode(made.SerializeToString()).decode()


def run(scripts: PageScripts, function: str, **arguments: Any) -> Any:
    return scripts.run("readback", function, **arguments)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 3, 12])
def test_all_outputs_travel_in_the_runs_own_submit_by_one_map(count: int, scripts: PageScripts) -> None:
    found = run(scripts, "costs", given=text(several(count)), provider="webgpu")
    assert list(found) == list(WAYS)
    for way, (results, (_, *later), read) in found.items():
        assert results == [[float(i + n) for n in range(6)] for i in range(count)], way
        assert later == [ONE, ONE], way
        assert read == NOTHING, way


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [1, 3])
def test_on_the_cpu_the_same_calls_ask_nothing_of_a_gpu(count: int, scripts: PageScripts) -> None:
    found = run(scripts, "costs", given=text(several(count)), provider="cpu")
    for way, (results, runs, read) in found.items():
        assert results == [[float(i + n) for n in range(6)] for i in range(count)], way
        assert [*runs, read] == [NOTHING] * 4, way


def test_a_run_of_several_submits_costs_none_more(scripts: PageScripts) -> None:
    # onnxruntime-web submits after each 16 dispatches.
    found = run(scripts, "costs", given=text(several(1, depth=40)), provider="webgpu")
    for way, (results, (_, *later), read) in found.items():
        assert results == [[float(n + 39) for n in range(6)]], way
        assert later == [{**ONE, "submits": 3}] * 2, way
        assert read == NOTHING, way


def computed(made: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check_mixed(scripts: PageScripts, made: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, int]:
    """Outputs as the native onnxruntime has them, to the byte; what the run cost."""
    form = {"int64": "q", "float32": "f", "int8": "b", "bool": "B"}
    given = {
        name: [form[str(array.dtype)], list(array.shape), array.reshape(-1).tolist()] for name, array in feeds.items()
    }
    told, spent = run(scripts, "mixed", given=text(made), feeds=given)
    wanted = [[str(array.dtype), list(array.shape), array.tobytes()] for array in computed(made, feeds)]
    assert [[dtype, shape, b64decode(data)] for dtype, shape, data in told] == wanted
    return dict(spent)


def test_outputs_of_odd_sizes_and_of_none_lie_side_by_side(scripts: PageScripts) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "two"], ["flags"]),
        helper.make_node("Add", ["x", "two"], ["sum"]),
        helper.make_node("Slice", ["x", "zero", "zero"], ["nothing"]),
        helper.make_node("Not", ["flags"], ["others"]),
        helper.make_node("Cast", ["x"], ["whole"], to=I32),
    ]
    bools = onnx.TensorProto.BOOL
    outputs: list[Value] = [
        ("flags", bools, ["n"]),
        ("nothing", F32, ["m"]),
        ("sum", F32, ["n"]),
        ("others", bools, ["n"]),
    ]
    outputs += [("whole", I32, ["n"])]
    weights = {"two": np.array([2], np.float32), "zero": np.array([0], np.int64)}
    made = build(nodes, [("x", F32, ["n"])], outputs, **weights)
    for size in (1, 3, 5, 8):
        spent = check_mixed(scripts, made, {"x": np.arange(size, dtype=np.float32)})
        assert spent == ONE, size


def test_outputs_that_no_gpu_buffer_holds_come_beside_the_others(scripts: PageScripts) -> None:
    # z is computed on the CPU: onnxruntime-web itself maps what it reads for that.
    spent = check_mixed(scripts, onnx.load_from_string(model("narrow")), {"x": np.array([1, -2, 30], np.int8)})
    assert spent["readbacks"] == 2
    feeds = {"n": np.array([1, -2, 30, 4, 63]), "flag": np.array([True, False, True, True, False])}
    made = onnx.load_from_string(model("element_types"))
    given = {name: array.astype(np.bool_) if name == "flag" else array for name, array in feeds.items()}
    assert check_mixed(scripts, made, given)["readbacks"] == 2


def test_more_than_is_kept_comes_too(scripts: PageScripts) -> None:
    x = np.arange(200_001, dtype=np.float32)
    spent = check_mixed(scripts, several(3), {"x": x})
    # A staging buffer of more than 1 MiB is made for each run.
    assert spent == {**ONE, "create_buffer": 1}


def test_host_accessible_tensors_get_their_copy_in_the_run(scripts: PageScripts) -> None:
    found = run(scripts, "staged", given=text(several(4)))
    expected = [[float(i + n) for n in range(6)] for i in range(4)]
    assert found["results"] == found["after"] == expected
    assert found["single"] == expected[3]
    assert found["run"] == ONE
    # Two buffers of staging memory, each mapped in place.
    assert found["read"] == {"submits": 0, "readbacks": 2, "create_buffer": 0}
    assert (
        "MemoryTypeError: output 'y1' of a captured run: buffer 'OrtValue' is in WebGPU_Staging"
        in (found["refused"]["capture"])
    )
    assert "wait for the read before you use the buffer again" in found["refused"]["while it is read"]
    assert found["healthy"]


def test_a_captured_runs_outputs_are_read_at_once(scripts: PageScripts) -> None:
    found = run(scripts, "captured", given=text(several(3)))
    for start in (10, 20):
        results, spent = found[str(start)]
        assert results == [[float(start + i + n) for n in range(6)] for i in range(3)]
        # The replay, and the read.
        assert (spent["submits"], spent["readbacks"]) == (2, 1)


def test_an_output_in_memory_that_the_run_uses_otherwise_is_refused(scripts: PageScripts) -> None:
    found = run(scripts, "in_place", given=text(several(2)))
    error, spent = found["input"]
    assert error.startswith("BindingError: output 'y0' and input 'x' share memory of buffer 'OrtValue'")
    assert "bind output 'y0' to separate memory" in error
    assert spent == NOTHING
    error, spent = found["twice"]
    assert error.startswith("BindingError: output 'y1' and output 'y0' share memory")
    assert spent == NOTHING
    assert found["x"] == [[float(n) for n in range(6)]]
    assert found["after"] == [[float(i + n) for n in range(6)] for i in range(2)]


def test_attention_goes_on_in_caches_that_are_bound_in_place(scripts: PageScripts) -> None:
    names = ["x", "", "", "past_key", "past_value", "before", "total"]
    node = helper.make_node(
        *("GroupQueryAttention", names, ["y", "present_key", "present_value"]),
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    sizes = [1, 1, 8, 16]
    inputs: list[Value] = [("x", F32, [1, 1, 48]), ("past_key", F32, sizes), ("past_value", F32, sizes)]
    inputs += [("before", I32, [1, 1]), ("total", I32, [1])]
    outputs: list[Value] = [("y", F32, [1, 1, 16]), ("present_key", F32, sizes), ("present_value", F32, sizes)]
    found = run(scripts, "attention", given=text(build([node], inputs, outputs)))
    x = np.arange(48, dtype=np.float32).tolist()
    assert found == {"key": x[16:32], "value": x[32:], "y": x[32:]}


def test_a_cancelled_wait_leaves_nothing_mapped_and_nothing_held_back(scripts: PageScripts) -> None:
    found = run(scripts, "stopped", given=text(several(3)))
    assert found["results"] == [[float(i + n) for n in range(6)] for i in range(3)]
    assert found["cost"] == ONE
    assert found["live"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("map", [0, 150])
def test_waiting_covers_earlier_work_that_is_late_and_copying_a_late_map(map: int, scripts: PageScripts) -> None:
    found = run(scripts, "delayed", work=150, map=map)
    waiting, copying = found["waiting"], found["copying"]
    # A timer of a page may be up to a millisecond early.
    assert waiting >= found["idle"] - found["asked"] >= 149
    assert map - 1 <= copying <= found["ended"] - found["idle"]
    assert waiting + copying <= found["ended"] - found["began"]


def test_a_readback_tells_the_wait_for_earlier_work_from_its_copy(scripts: PageScripts) -> None:
    found = run(scripts, "times")
    waiting, copying = found["waiting"], found["copying"]
    # The copies before it ended after the map was asked for, so all until then was waiting.
    assert waiting >= found["finished"] - found["called"] > 0
    assert 0 < copying <= found["ended"] - found["finished"]
    assert found["ranged"] - found["called"] <= waiting + copying <= found["ended"] - found["started"]
