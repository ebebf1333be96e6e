"""What has no CPU kernel in onnxruntime-web, by other operators: native onnxruntime computes the same of both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.uncomputed import uncomputed
from tests.attention_nodes import AttentionNode

Array = np.ndarray[Any, np.dtype[Any]]
FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS, IDS = 12, np.array([[3, 0, 11], [7, 7, 2]])
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def outputs(model: ModelProto, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(graph.serialize(model), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def embedding(bits: int, blocks: int, block: int, *, points: bool, shared: bool, kind: type = np.float32) -> ModelProto:
    """A quantized embedding; `shared`: its weights are those of a product, and reshaped."""
    random = np.random.default_rng(bits * blocks + block)
    row = blocks * block * bits // 8
    weight = random.integers(0, 256, (ROWS, row), np.uint8)
    tensors: dict[str, Array] = {"scales": random.standard_normal((ROWS, blocks)).astype(kind)}
    if points:
        tensors["points"] = random.integers(0, 256, (ROWS, (blocks * bits + 7) // 8), np.uint8)
    nodes = []
    if shared:
        tensors |= {"product": weight.reshape(ROWS, blocks, -1), "shape": np.array([ROWS, row])}
        nodes.append(helper.make_node("Reshape", ["product", "shape"], ["weight"]))
    else:
        tensors["weight"] = weight
    inputs = ["weight", "ids", "scales", *(["points"] if points else [])]
    attributes: dict[str, Any] = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    nodes.append(
        helper.make_node("GatherBlockQuantized", inputs, ["rows"], domain="com.microsoft", name="embed", **attributes)
    )
    made = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("rows", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return graph.parse(helper.make_model(made, opset_imports=OPSETS, ir_version=8).SerializeToString())


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("bits", "blocks", "block"), [(4, 3, 32), (4, 2, 16), (8, 3, 32), (4, 1, 128)])
def test_a_quantized_embedding_is_what_the_operator_gives(
    bits: int, blocks: int, block: int, points: bool, shared: bool, kind: type
) -> None:
    model = embedding(bits, blocks, block, points=points, shared=shared, kind=kind)
    rewritten = graph.gathers_unpacked(model)
    assert uncomputed(model, "wasm") != []
    assert uncomputed(rewritten, "wasm") == []
    [expected] = outputs(model, {"ids": IDS})
    [found] = outputs(rewritten, {"ids": IDS})
    np.testing.assert_array_equal(found, expected)
    assert found.shape == (2, 3, blocks * block)


def test_shared_weights_are_gathered_as_the_product_has_them() -> None:
    rewritten = graph.gathers_unpacked(embedding(4, 3, 32, points=False, shared=True))
    assert [node.input[0] for node in rewritten.graph.node if node.op_type == "Gather"] == ["product", "scales"]


def test_an_embedding_of_another_form_stays_as_it_is() -> None:
    model = embedding(4, 3, 32, points=False, shared=False)
    by_column, cut, signed = (graph.parse(graph.serialize(model)) for _ in range(3))
    for other, name, value in ((by_column, "gather_axis", 1), (cut, "block_size", 64)):
        next(item for item in other.graph.node[0].attribute if item.name == name).i = value
    next(tensor for tensor in signed.graph.initializer if tensor.name == "weight").data_type = TensorProto.INT8
    joined = embedding(4, 3, 32, points=False, shared=True)
    shape = next(tensor for tensor in joined.graph.initializer if tensor.name == "shape")
    shape.raw_data = np.array([ROWS // 2, 96]).tobytes()
    for other in (by_column, cut, signed, joined):
        assert graph.gathers_unpacked(other) == other


@pytest.mark.parametrize(("queries", "past"), [(1, 20), (7, 0), (3, 10)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_norms_before_attention_are_what_attention_does(queries: int, past: int, packed: bool, rotary: bool) -> None:
    inputs = ("q_norm_weight", *(("cos_cache",) if rotary else ()))
    node = AttentionNode(queries, past, {"do_rotary": int(rotary), "qk_norm_epsilon": 0.5}, inputs)
    model = graph.parse(node.model())
    feeds = {name: node.tensors()[name] for name in ("query", "key", "value")}
    if packed:
        feeds = {"query": np.concatenate([*feeds.values()], axis=-1)}
        model.graph.node[0].input[1] = model.graph.node[0].input[2] = ""
        del model.graph.input[1:]
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = feeds["query"].shape[2]
    rewritten = graph.norms_apart(model)
    assert uncomputed(model, "wasm") != []
    assert uncomputed(rewritten, "wasm") == []
    [found, *_] = outputs(rewritten, feeds)
    np.testing.assert_allclose(found, node.expected(), atol=1e-5)


def test_packed_attention_of_an_opset_without_sizes_of_splits_stays_as_it_is() -> None:
    model = graph.parse(AttentionNode(1, 20, {}, ("q_norm_weight",)).model())
    model.graph.node[0].input[1] = model.graph.node[0].input[2] = ""
    assert graph.norms_apart(model) != model
    model.opset_import[0].version = 12
    assert graph.norms_apart(model) == model


def test_graphs_without_norms_in_attention_stay_as_they_are() -> None:
    model = graph.parse((FIXTURES / "nano-qwen3/model.onnx").read_bytes())
    assert graph.norms_apart(model) == model == graph.gathers_unpacked(model)
