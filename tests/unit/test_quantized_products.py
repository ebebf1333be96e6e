"""DequantizeLinear and MatMul as MatMulNBits: the same numbers with onnxruntime on the CPU; nodes that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto
from tests.unit.graph_runs import operators, session_of
from tests.weight_bytes import bytes_of

K, N = 96, 20
RANGES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256)}
RANDOM = np.random.default_rng(7)


class Made:
    """A model of one product whose weights are in a data file."""

    def __init__(
        self, kind: str, block: int, *, zeros: bool, by_rows: bool = False, operator: str = "MatMul", bias: bool = False
    ) -> None:
        self.data = b""
        self.tensors: list[onnx.TensorProto] = []
        low, high = RANGES[kind]
        shape = (N, K) if by_rows else (K, N)
        blocks = (N, K // block) if by_rows else (K // block, N)
        element = getattr(TensorProto, kind)
        inputs = ["weights", "scales"]
        self.add("weights", element, RANDOM.integers(low, high, shape))
        self.add("scales", TensorProto.FLOAT, RANDOM.uniform(0.01, 0.1, blocks).astype(np.float32))
        if zeros:
            self.add("zeros", element, RANDOM.integers(low, high, blocks))
            inputs.append("zeros")
        nodes = [helper.make_node("DequantizeLinear", inputs, ["w"], axis=int(by_rows), block_size=block)]
        given = ["x", "w"]
        if bias:
            self.add("bias", TensorProto.FLOAT, RANDOM.uniform(-1, 1, N).astype(np.float32))
            given.append("bias")
        if operator == "MatMul" and by_rows:
            nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
            given[1] = "turned"
        nodes.append(helper.make_node(operator, given, ["y"], name="product"))
        if operator == "Gemm" and by_rows:
            nodes[-1].attribute.append(helper.make_attribute("transB", 1))
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
        opsets = [helper.make_opsetid("", 21)]
        made = helper.make_model(
            helper.make_graph(nodes, "test", values[:1], values[1:], self.tensors), opset_imports=opsets, ir_version=10
        )
        self.model = graph.parse(made.SerializeToString())

    def add(self, name: str, element: int, values: np.ndarray[Any, Any]) -> None:
        flat = values.reshape(-1)
        if element in (TensorProto.INT4, TensorProto.UINT4):
            content = (flat[::2] & 15 | (flat[1::2] & 15) << 4).astype(np.uint8).tobytes()
        elif element == TensorProto.FLOAT:
            content = flat.tobytes()
        else:
            content = flat.astype(np.int8 if element == TensorProto.INT8 else np.uint8).tobytes()
        tensor = onnx.TensorProto(name=name, data_type=element, dims=values.shape, data_location="EXTERNAL")
        for key, value in (("location", "d"), ("offset", str(len(self.data))), ("length", str(len(content)))):
            tensor.external_data.add(key=key, value=value)
        self.data += content
        self.tensors.append(tensor)

    def run(self, model: ModelProto) -> Any:
        """Its outputs for three rows, unoptimised, so that DequantizeLinear stays a node of its own."""
        twin = onnx.ModelProto.FromString(graph.serialize(model))
        for tensor, entry in zip_by_name(twin, graph.external_entries(model)):
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
            tensor.raw_data = bytes_of(entry, self.data)
        session = session_of(graph.parse(twin.SerializeToString()), as_it_is=True)
        x = np.random.default_rng(3).standard_normal((3, K)).astype(np.float32)
        return session.run(None, {"x": x})[0]


def zip_by_name(model: onnx.ModelProto, entries: list[graph.WeightEntry]) -> list[Any]:
    named = {entry.name: entry for entry in entries}
    return [(tensor, named[tensor.name]) for tensor in model.graph.initializer if tensor.name in named]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("kind", list(RANGES))
def test_blocks_down_the_columns(kind: str, block: int, zeros: bool) -> None:
    """96 elements are 3 blocks of 32: a row of zero points in four bits ends within a byte."""
    made = Made(kind, block, zeros=zeros)
    rewritten, why = graph.quantized_products(made.model)
    assert (operators(rewritten), why) == (Counter(["MatMulNBits"]), "")
    np.testing.assert_allclose(made.run(rewritten), made.run(made.model), rtol=0, atol=1e-4)


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize(("kind", "zeros"), [("INT4", False), ("UINT4", True), ("INT8", True), ("UINT8", False)])
def test_blocks_along_the_rows(kind: str, zeros: bool, operator: str) -> None:
    made = Made(kind, 16, zeros=zeros, by_rows=True, operator=operator)
    rewritten, why = graph.quantized_products(made.model)
    assert (operators(rewritten), why) == (Counter(["MatMulNBits"]), "")
    np.testing.assert_allclose(made.run(rewritten), made.run(made.model), rtol=0, atol=1e-4)


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_bias_of_gemm_is_added_after_it(by_rows: bool) -> None:
    made = Made("INT4", 32, zeros=False, by_rows=by_rows, operator="Gemm", bias=True)
    rewritten, _ = graph.quantized_products(made.model)
    assert operators(rewritten) == Counter(["MatMulNBits", "Add"])
    np.testing.assert_allclose(made.run(rewritten), made.run(made.model), rtol=0, atol=1e-4)


@pytest.mark.parametrize("level", [0, 4])
def test_the_level_of_accuracy_is_the_one_that_was_asked_for(level: int) -> None:
    rewritten, _ = graph.quantized_products(Made("INT4", 32, zeros=False).model, level)
    told = {item.name: item.i for item in rewritten.graph.node[0].attribute}
    assert told == {"K": K, "N": N, "bits": 4, "block_size": 32, "accuracy_level": level}


def one_scale(model: ModelProto) -> None:
    next(item for item in model.graph.node[0].attribute if item.name == "block_size").i = 0


def other_axis(model: ModelProto) -> None:
    next(item for item in model.graph.node[0].attribute if item.name == "axis").i = 1


def odd_blocks(model: ModelProto) -> None:
    next(item for item in model.graph.node[0].attribute if item.name == "block_size").i = 48


def within_the_model(model: ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("data_location")
    tensor.raw_data = bytes(K * N // 2)


def computed_scales(model: ModelProto) -> None:
    model.graph.node.insert(0, type(model.graph.node[0])(op_type="Identity", input=["scales"], output=["computed"]))
    model.graph.node[1].input[1] = "computed"


def scaled_gemm(model: ModelProto) -> None:
    model.graph.node[1].op_type = "Gemm"
    model.graph.node[1].attribute.add(name="alpha", type=1, f=0.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (one_scale, "node product: MatMulNBits does not support its blocks of 0 along axis 0 of 96x20"),
        (other_axis, "node product: MatMulNBits does not support its blocks of 32 along axis 1 of 96x20"),
        (odd_blocks, "node product: MatMulNBits does not support its blocks of 48 along axis 0 of 96x20"),
        (within_the_model, "node product: its weights are inside model.onnx, not in a data file"),
        (computed_scales, "node product: its scales are computed"),
        (scaled_gemm, "node product: it has factors or a transposed input"),
    ],
)
def test_what_is_not_the_same_stays_and_is_told(change: Callable[[ModelProto], None], reason: str) -> None:
    model = Made("INT4", 32, zeros=False).model
    change(model)
    rewritten, why = graph.quantized_products(model)
    assert why == f"{reason} (1 such)"
    assert rewritten == model


def test_products_of_floats_are_nothing_to_tell() -> None:
    model = Made("INT4", 32, zeros=False).model
    model.graph.node[1].input[1] = "scales"
    rewritten, why = graph.quantized_products(model)
    assert (rewritten, why) == (model, "")
