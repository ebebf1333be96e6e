"""Products by packed weights as products by float32 weights: the same numbers as onnxruntime's, and what stays."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto
from tests.node import started

RANDOM = np.random.default_rng(28)
DATA = "model.onnx.data"
N = 6
LOTS = 1 << 30


@pytest.fixture(scope="module")
def node() -> subprocess.Popen[str]:
    return started(Path(__file__).with_name("wide_weights_server.mjs"))


class Made:
    """A model of products y = x W, one after the other, whose weights are in a data file that begins with odd bytes."""

    def __init__(self, bits: int, k: int, block: int, *, zeros: bool, count: int = 1, **changes: Any) -> None:
        self.data = b"odd"
        self.tensors: list[onnx.TensorProto] = []
        blocks = -(-k // block)
        nodes, last = [], "x"
        for place in range(count):
            rows = N if place == count - 1 else k
            names = [f"{what}{place}" for what in ("packed", "scales", "zeros")]
            self.add(names[0], RANDOM.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8))
            self.add(names[1], RANDOM.uniform(-0.1, 0.1, rows * blocks).astype(changes.get("scales", np.float32)))
            if zeros:
                self.add(names[2], RANDOM.integers(0, 256, rows * -(-blocks * bits // 8), np.uint8))
            inputs = [last, *names[: 2 + zeros], *changes.get("more", [])]
            sizes: dict[str, Any] = {"N": rows, "K": k, "bits": bits, "block_size": block}
            last = "y" if place == count - 1 else f"h{place}"
            nodes.append(helper.make_node("MatMulNBits", inputs, [last], domain="com.microsoft", **sizes))
        if "more" in changes:
            self.tensors.append(onnx.numpy_helper.from_array(np.ones(N, np.float32), "bias"))
        dtype = changes.get("scales", np.float32)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        values = [helper.make_tensor_value_info(name, element, None) for name in ("x", "y")]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_graph(nodes, "products", values[:1], values[1:], self.tensors)
        whole = helper.make_model(made, opset_imports=opsets, ir_version=10)
        self.model: ModelProto = graph.parse(whole.SerializeToString())
        self.x = RANDOM.standard_normal((2, 3, k)).astype(dtype)

    def add(self, name: str, values: np.ndarray[Any, Any]) -> None:
        tensor = onnx.numpy_helper.from_array(values, name)
        for key, value in (("location", DATA), ("offset", len(self.data)), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        self.data += values.tobytes()
        self.tensors.append(tensor)

    def run(self, model: ModelProto, folder: Path, files: dict[str, bytes]) -> np.ndarray[Any, Any]:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / "model.onnx").write_bytes(graph.serialize(model))
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["y"], {"x": self.x})[0])


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def widened(node: subprocess.Popen[str], wide: graph.WideWeight, data: bytes) -> bytes:
    assert node.stdin
    assert node.stdout
    line = json.dumps({"wide": wide.as_json(), "files": {DATA: b64encode(data).decode()}})
    node.stdin.write(line + "\n")
    node.stdin.flush()
    return b64decode(node.stdout.readline())


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "k", "block"), [(4, 64, 32), (4, 80, 32), (4, 48, 16), (8, 64, 32), (8, 80, 64)])
def test_the_numbers_are_those_of_the_packed_product(
    bits: int, k: int, block: int, zeros: bool, node: subprocess.Popen[str], tmp_path: Path
) -> None:
    made = Made(bits, k, block, zeros=zeros, count=2)
    model, wide = graph.wide_products(made.model, LOTS)
    assert kinds(model) == ["FusedMatMul"] * 2
    assert kinds(made.model) == ["MatMulNBits"] * 2
    assert {entry.location for entry in graph.external_entries(model)} == {each.location for each in wide}
    files = {each.location: widened(node, each, made.data) for each in wide}
    found = made.run(model, tmp_path, files)
    expected = made.run(made.model, tmp_path, {DATA: made.data})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))


def test_no_more_bytes_are_made_than_allowed_and_the_other_products_stay() -> None:
    made = Made(4, 64, 32, zeros=False, count=3)
    each = 4 * 64 * 64
    model, wide = graph.wide_products(made.model, 2 * each - 1)
    assert kinds(model) == ["FusedMatMul", "MatMulNBits", "FusedMatMul"]  # The last one is smaller.
    assert sum(one.bytes for one in wide) <= 2 * each - 1
    assert kinds(graph.wide_products(made.model, 0)[0]) == ["MatMulNBits"] * 3


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "k", "block"), [(4, 64, 32), (4, 80, 16), (8, 64, 32)])
def test_products_in_float16_are_computed_in_float32_and_rounded(
    bits: int, k: int, block: int, zeros: bool, node: subprocess.Popen[str], tmp_path: Path
) -> None:
    made = Made(bits, k, block, zeros=zeros, count=2, scales=np.float16)
    model, wide = graph.wide_products(made.model, LOTS)
    assert kinds(model) == ["Cast", "FusedMatMul", "Cast"] * 2
    files = {each.location: widened(node, each, made.data) for each in wide}
    found = made.run(model, tmp_path, files)
    expected = made.run(made.model, tmp_path, {DATA: made.data})
    assert found.dtype == expected.dtype == np.float16
    most = float(np.abs(expected).max())
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=1e-3 * most)


def test_products_that_read_the_same_float16_share_its_cast() -> None:
    made = Made(4, 64, 32, zeros=False, count=2, scales=np.float16)
    made.model.graph.node[1].input[0] = "x"
    made.model.graph.output.add(name="h0")
    model, _ = graph.wide_products(made.model, LOTS)
    assert sorted(kinds(model)) == ["Cast"] * 3 + ["FusedMatMul"] * 2


def test_an_output_that_is_left_out_feeds_no_input_that_is() -> None:
    made = Made(4, 64, 32, zeros=False, scales=np.float16)
    made.model.graph.node[0].output[0] = "h"
    made.model.graph.node.add(op_type="Attention", input=["h", ""], output=["y", ""])
    made.model.graph.node.add(op_type="Norm", input=["y"], output=["last", ""])
    made.model.graph.output.add(name="last")
    model, _ = graph.wide_products(made.model, LOTS)
    assert kinds(model) == ["Cast", "FusedMatMul", "Cast", "Attention", "Norm"]


def test_products_with_a_bias_stay() -> None:
    made = Made(4, 64, 32, zeros=False, more=["", "", "bias"])
    model, wide = graph.wide_products(made.model, LOTS)
    assert (kinds(model), wide) == (["MatMulNBits"], ())


def test_weights_that_two_products_share_are_made_once() -> None:
    made = Made(4, 64, 32, zeros=False)
    twin = made.model.graph.node.add()
    twin.CopyFrom(made.model.graph.node[0])
    twin.output[0] = "other"
    made.model.graph.output.add(name="other")
    model, wide = graph.wide_products(made.model, LOTS)
    assert (kinds(model), len(wide)) == (["FusedMatMul"] * 2, 1)
