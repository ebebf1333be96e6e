"""Graphs of one operation each whose weights are in a data file, and what the native onnxruntime computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["KEPT", "SHARED", "Weighted", "noise", "one", "pairs", "run_plainly", "save", "two_layers"]

Array = np.ndarray[Any, np.dtype[Any]]
MICROSOFT = "com.microsoft"


def noise(*shape: int, seed: int = 1, scale: float = 0.25) -> Array:
    """float32 numbers of both signs."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class Weighted:
    """x goes through `nodes` to y; `weights` are in the data file."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    x: Array
    weights: Mapping[str, Array]
    reason: str = ""
    """The reason for weights that stay initializers, as the warning gives it."""
    small: Sequence[str] = ()
    """The weights that stay initializers without a warning."""
    free: bool = False
    """Whether x may have any number of rows."""

    def model(self) -> onnx.ModelProto:
        dims = ["rows", *self.x.shape[1:]] if self.free else self.x.shape
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(self.x.dtype), dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def computed(self) -> Array:
        """The native onnxruntime's result."""
        return run_plainly(self.model().SerializeToString(), {"x": self.x})

    @property
    def shared_bytes(self) -> int:
        """Bytes of the weights that are buffers of the page."""
        if self.reason:
            return 0
        sizes = [array.nbytes for name, array in self.weights.items() if name not in self.small]
        return sum(-(-size // 16) * 16 for size in sizes)


def run_plainly(model: bytes, feeds: Mapping[str, Array]) -> Array:
    """The native onnxruntime's result, node by node: some of its fusions compute in int8."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert {item.name for item in session.get_inputs()} == set(feeds)
    return np.asarray(session.run(None, dict(feeds))[0])


def save(model: onnx.ModelProto, folder: Path, name: str = "model") -> Path:
    """NAME.onnx with all its weights in NAME.data."""
    path = folder / f"{name}.onnx"
    # onnx appends to an old one.
    (folder / f"{name}.data").unlink(missing_ok=True)
    options: dict[str, Any] = {"save_as_external_data": True, "location": f"{name}.data", "size_threshold": 0}
    onnx.save_model(model, path, convert_attribute=False, **options)
    return path


def two_layers(size: int = 1024) -> Weighted:
    """x w1 w2 + b: the weights are 4 and 0.5 MiB, and b is small."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"]),
    ]
    weights = {"w1": noise(size, size), "w2": noise(size, size // 8, seed=2), "b": noise(size // 8, seed=3)}
    return Weighted("two_layers", nodes, noise(2, size, seed=4), weights, small=["b"])


def pairs() -> Weighted:
    """Rows of x w two by two: a run of an odd number of rows fails."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "shape"], ["y"])]
    weights = {"w": noise(32, 16), "shape": np.array([-1, 32], np.int64)}
    return Weighted("pairs", nodes, noise(4, 32), weights, small=["shape"], free=True)


def one(
    name: str, op: str, x: Array, weights: Mapping[str, Array], *, small: Sequence[str] = (), **told: Any
) -> Weighted:
    """y = op(x, weights)."""
    return Weighted(name, [helper.make_node(op, ["x", *weights], ["y"], **told)], x, weights, small=small)


IMAGE = noise(1, 16, 8, 8)
INT4 = np.random.default_rng(5).integers(0, 256, (64, 4, 16), dtype=np.uint8)
HIDDEN = noise(2, 512, scale=1.0)

SHARED = (
    two_layers(256),
    pairs(),
    one("gemm", "Gemm", noise(3, 64), {"w": noise(96, 64), "b": noise(96)}, small=["b"], transB=1, alpha=0.5),
    one("conv", "Conv", IMAGE, {"w": noise(32, 16, 3, 3), "b": noise(32)}, small=["b"], pads=[1, 1, 1, 1]),
    one("pointwise", "Conv", IMAGE, {"w": noise(64, 16, 1, 1)}),
    one("depthwise", "Conv", noise(1, 64, 8, 8), {"w": noise(64, 1, 3, 3)}, group=64),
    one("conv1d", "Conv", noise(1, 16, 40), {"w": noise(32, 16, 5)}, strides=[2]),
    one("conv_transpose", "ConvTranspose", IMAGE, {"w": noise(16, 24, 2, 2)}, strides=[2, 2]),
    one("layer_norm", "LayerNormalization", HIDDEN, {"scale": noise(512), "b": noise(512)}, axis=-1),
    one(
        "batch_norm",
        "BatchNormalization",
        noise(1, 300, 4, 4),
        {"scale": noise(300), "b": noise(300), "mean": noise(300), "var": np.abs(noise(300)) + 1},
    ),
    one("instance_norm", "InstanceNormalization", noise(1, 300, 4, 4), {"scale": noise(300), "b": noise(300)}),
    one(
        "nbits",
        "MatMulNBits",
        noise(2, 128),
        {"w": INT4, "scales": np.abs(noise(256, scale=0.05)) + 0.01},
        small=["scales"],
        domain=MICROSOFT,
        K=128,
        N=64,
        bits=4,
        block_size=32,
    ),
    one("add", "Add", HIDDEN, {"b": noise(512)}),
    one(
        "attention",
        "Attention",
        noise(1, 6, 64),
        {"w": noise(64, 192), "b": noise(192)},
        small=["b"],
        domain=MICROSOFT,
        num_heads=4,
    ),
    Weighted(
        "gather",
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        np.array([[3, 0, 59], [7, 7, 1]], np.int64),
        {"table": noise(60, 24)},
    ),
    Weighted(
        "turned",
        [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])],
        noise(2, 64),
        {"w": noise(48, 64)},
    ),
    Weighted(
        "dequantized",
        [
            helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["f"]),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        noise(2, 64),
        {
            "w": np.random.default_rng(7).integers(0, 256, (64, 48), dtype=np.uint8),
            "scale": np.array(0.01, np.float32),
            "zero": np.array(128, np.uint8),
        },
        small=["scale", "zero"],
    ),
)
"""Weights that become buffers of the page."""


def branches() -> Weighted:
    """If in a graph: one branch reads a weight of the graph around it, the other has one of its own."""
    outer = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"])], "then", [], [helper.make_tensor_value_info("a", 1, None)]
    )
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "v"], ["c"])],
        "else",
        [],
        [helper.make_tensor_value_info("c", 1, None)],
        [numpy_helper.from_array(noise(32, 48, seed=9), "v")],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["which"]),
        helper.make_node("If", ["which"], ["y"], then_branch=outer, else_branch=inner),
    ]
    weights = {"w": noise(32, 48), "zero": np.array(0, np.float32)}
    return Weighted("branches", nodes, -np.abs(noise(2, 32)), weights, "a subgraph of If reads it", small=["zero"])


KEPT = (
    Weighted(
        "resized",
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        IMAGE,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
        small=["scales"],
    ),
    Weighted(
        "folded",
        [helper.make_node("Mul", ["w", "w"], ["s"]), helper.make_node("MatMul", ["x", "s"], ["y"])],
        noise(2, 64),
        {"w": noise(64, 48)},
        "Mul has only constant inputs",
    ),
    Weighted(
        "int8",
        [
            helper.make_node("DequantizeLinear", ["w", "scale"], ["f"]),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        noise(2, 64),
        {
            "w": np.random.default_rng(7).integers(-128, 128, (64, 48), dtype=np.int8),
            "scale": np.array(0.01, np.float32),
        },
        "DequantizeLinear may read a constant of int8 on the host",
        small=["scale"],
    ),
    Weighted(
        "recurrent",
        [helper.make_node("GRU", ["x", "w", "r"], ["all", "y"], hidden_size=16)],
        noise(5, 1, 24),
        {"w": noise(1, 48, 24), "r": noise(1, 48, 16)},
        "GRU may read a constant of float32 on the host",
    ),
    branches(),
)
"""Weights that stay initializers, all or those that are not small."""
