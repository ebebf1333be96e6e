"""Small ONNX models made on the fly, and what the native onnxruntime computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MODELS", "computed", "external_model", "model", "ramp", "session"]

OPSET = 17
IR = 8
F32, F16, I64, I32, U8, I8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.BOOL,
)
Value = tuple[str, int, Sequence[int | str | None]]


def ramp(*shape: int, scale: float = 0.125) -> np.ndarray[Any, np.dtype[Any]]:
    """float32 numbers that float16 has too, of both signs."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 % 31 - 15) * scale).astype(np.float32).reshape(shape)


def build(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], **weights: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
    onnx.checker.check_model(made)
    return made


def affine() -> onnx.ModelProto:
    """y = x w + b for any number of rows."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])]
    return build(
        nodes, [("x", F32, ["rows", 3])], [("y", F32, ["rows", 2])], w=ramp(3, 2), b=np.array([1, -1], np.float32)
    )


def two_outputs() -> onnx.ModelProto:
    """Two inputs, two outputs, static: sum = a + b, difference = a - b."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    shape = [2, 3]
    return build(nodes, [("a", F32, shape), ("b", F32, shape)], [("sum", F32, shape), ("difference", F32, shape)])


def static() -> onnx.ModelProto:
    """A static network with a softmax: [4, 8] -> [4, 5]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("MatMul", ["h2", "w2"], ["h3"]),
        helper.make_node("Softmax", ["h3"], ["y"], axis=-1),
    ]
    return build(nodes, [("x", F32, [4, 8])], [("y", F32, [4, 5])], w1=ramp(8, 16), w2=ramp(16, 5))


def reshaped() -> onnx.ModelProto:
    """A static network whose run holds buffer copies: Reshape and Identity of results."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["flat"]),
        helper.make_node("Identity", ["flat"], ["y"]),
    ]
    return build(nodes, [("x", F32, [4, 6])], [("y", F32, [3, 8])], shape=np.array([3, 8], np.int64))


def element_types() -> onnx.ModelProto:
    """One output of each of several types, from int64 and bool inputs of any length."""
    kinds = [("float32", F32), ("int32", I32), ("uint8", U8), ("int64", I64)]
    nodes = [helper.make_node("Mul", ["n", "two"], ["doubled"]), helper.make_node("Not", ["flag"], ["negated"])]
    nodes += [helper.make_node("Cast", ["doubled"], [f"as_{name}"], to=kind) for name, kind in kinds]
    outputs: list[Value] = [("negated", BOOL, ["n"])]
    outputs += [(f"as_{name}", kind, ["n"]) for name, kind in kinds]
    return build(nodes, [("n", I64, ["n"]), ("flag", BOOL, ["n"])], outputs, two=np.array([2], np.int64))


def half() -> onnx.ModelProto:
    """float16: y = x + x."""
    return build([helper.make_node("Add", ["x", "x"], ["y"])], [("x", F16, [4])], [("y", F16, [4])])


def narrow() -> onnx.ModelProto:
    """int8, which GPU buffers do not hold, in and out: y = x / 2 as float32, z = -x."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "half"], ["y"]),
        helper.make_node("Neg", ["y"], ["negated"]),
        helper.make_node("QuantizeLinear", ["negated", "half", "zero"], ["z"]),
    ]
    outputs: list[Value] = [("y", F32, ["n"]), ("z", I8, ["n"])]
    return build(nodes, [("x", I8, ["n"])], outputs, half=np.array(0.5, np.float32), zero=np.array(0, np.int8))


def positions() -> onnx.ModelProto:
    """The indices at which x is not zero: the output's size depends on the values."""
    return build([helper.make_node("NonZero", ["x"], ["y"])], [("x", F32, ["n"])], [("y", I64, [1, "found"])])


def unnamed() -> onnx.ModelProto:
    """A scalar, and a free dimension without a name."""
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"])]
    return build(nodes, [("x", F32, [None, 2]), ("factor", F32, [])], [("y", F32, [None, 2])])


def sized() -> onnx.ModelProto:
    """The values of an input decide the shape: x reshaped to it."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    return build(nodes, [("x", F32, [4, 6]), ("shape", I64, [2])], [("y", F32, ["p", "q"])])


def looking_back() -> onnx.ModelProto:
    """Attention of one position that sees no more than the last four; y is its value, the last third of x."""
    attention = helper.make_node(
        "GroupQueryAttention",
        ["x", "", "", "past", "past", "before", "total"],
        ["y", "keys", "values"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
        local_window_size=4,
    )
    return build(
        [attention],
        [("x", F32, [1, 1, 48])],
        [("y", F32, [1, 1, 16])],
        past=np.zeros((1, 1, 8, 16), np.float32),
        before=np.zeros((1, 1), np.int32),
        total=np.ones(1, np.int32),
    )


def sum_of_any() -> onnx.ModelProto:
    """y = a + b for vectors of any lengths, which fails where they do not broadcast."""
    values: list[Value] = [("a", F32, ["n"]), ("b", F32, ["m"])]
    return build([helper.make_node("Add", ["a", "b"], ["y"])], values, [("y", F32, ["k"])])


MODELS = (
    affine,
    two_outputs,
    static,
    reshaped,
    element_types,
    half,
    narrow,
    positions,
    unnamed,
    sized,
    sum_of_any,
    looking_back,
)


@cache
def model(name: str) -> bytes:
    """One of the models above, serialized."""
    return {make.__name__: make for make in MODELS}[name]().SerializeToString()


def external_model(folder: Path) -> Path:
    """`static` with its weights in a file next to it."""
    path = folder / "model.onnx"
    onnx.save_model(
        static(), path, save_as_external_data=True, location="weights.data", size_threshold=0, convert_attribute=False
    )
    return path


def session(name: str) -> Any:
    """The native onnxruntime's session."""
    return onnxruntime.InferenceSession(model(name), providers=["CPUExecutionProvider"])


def computed(name: str, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
    """The outputs of the native onnxruntime."""
    found: list[Any] = session(name).run(outputs, dict(feeds))
    return found
