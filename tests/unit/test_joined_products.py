"""q, k and v by one product: what the rewritten graph computes, with onnxruntime on the CPU, and what stays apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.joined_products import packed_apart
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.weight_inputs import made_of
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.graph_runs import operators, outputs
from tests.weight_bytes import bytes_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPACITY = 64
SIZES = (64, 32, 32)
"""Rows of q, k and v in the fixtures."""


def parsed(name: str) -> ModelProto:
    return graph.parse((FIXTURES / name / "model.onnx").read_bytes())


def logits_and_caches(model: ModelProto, name: str) -> list[Any]:
    feeds: dict[str, Any] = {}
    decoder = parse_genai_config((FIXTURES / name / "genai_config.json").read_bytes()).decoder
    for pair in graph.describe(parsed(name), decoder).cache:
        feeds[pair.past] = np.zeros((1, 2, CAPACITY, 16), np.float32)
    ids = [5, 6, 7, 8, 9]
    feeds |= {"input_ids": np.array([ids]), "attention_mask": (np.arange(CAPACITY) < len(ids)).astype(np.int64)[None]}
    return outputs(model, feeds, (FIXTURES / name / "model.onnx.data").read_bytes())


def attentions(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def apart(name: str) -> ModelProto:
    """A fixture whose packed products, and sums with their biases or splits, are taken apart."""
    model = parsed(name)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    entries = {entry.name: entry for entry in graph.external_entries(model)}

    def slices(whole: str) -> list[str]:
        entry, start, names = entries[whole], 0, []
        for part, size in zip("qkv", SIZES, strict=True):
            length = entry.length * size // sum(SIZES)
            dims = [size, *entry.dims[1:]]
            pieces = [graph.Part(entry.offset + start, length)]
            tensor = made_of(f"{whole}.{part}", entry.onnx_type, dims, entry.location, pieces)
            model.graph.initializer.add().CopyFrom(tensor)
            names.append(tensor.name)
            start += length
        model.graph.initializer.remove(tensors[whole])
        return names

    for product in [node for node in model.graph.node if "qkv_proj" in node.name and node.op_type == "MatMulNBits"]:
        (reader,) = (node for node in model.graph.node if product.output[0] in node.input)
        made = list(reader.output) if reader.op_type == "Split" else [f"{product.output[0]}.{part}" for part in "qkv"]
        inputs = [slices(each) for each in product.input[1:]]
        place = list(model.graph.node).index(product)
        model.graph.node.remove(product)
        biases = None
        if reader.op_type == "Split":
            model.graph.node.remove(reader)
        elif reader.op_type == "Add":
            (attention,) = (node for node in attentions(model) if node.input[0] == reader.output[0])
            biases = slices(next(each for each in reader.input if each in tensors))
            model.graph.node.remove(reader)
            attention.input[:3] = [f"{each}.biased" for each in made]
        else:
            reader.input[:3] = made
        for i, size in enumerate(SIZES):
            node = NodeProto()
            node.CopyFrom(product)
            node.name, node.output[0] = f"{product.name}.{i}", made[i]
            node.input[1:] = [parts[i] for parts in inputs]
            next(item for item in node.attribute if item.name == "N").i = size
            model.graph.node.insert(place + i, node)
            if biases:
                inputs_of_sum = [made[i], biases[i]]
                total = NodeProto(name=f"{reader.name}.{i}", op_type="Add", input=inputs_of_sum)
                total.output.append(f"{made[i]}.biased")
                model.graph.node.insert(place + len(SIZES) + i, total)
    return model


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("nano-apart", parsed),
        ("nano-blocks", parsed),
        ("nano-llama", apart),
        ("nano-mixed", apart),
        ("nano-qwen2", apart),
        ("nano-qwen3", apart),
    ],
)
def test_one_product_makes_what_three_made(name: str, made: Callable[[str], ModelProto]) -> None:
    model = made(name)
    assert operators(model)["MatMulNBits"] == 15
    joined = graph.joined_products(model)
    assert operators(joined)["MatMulNBits"] == 11
    for first, second in zip(logits_and_caches(model, name), logits_and_caches(joined, name), strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-5 * np.abs(first).max())


@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen2", "nano-qwen3"])
def test_what_was_taken_apart_is_as_the_model_builder_packs_it(name: str) -> None:
    joined, packed = graph.joined_products(apart(name)), parsed(name)
    wanted = operators(packed) - Counter({"Constant": operators(packed)["Constant"]})
    assert operators(joined) - Counter({"Constant": operators(joined)["Constant"]}) == wanted
    given = [[bool(each) for each in node.input[:3]] for node in attentions(packed)]
    assert [[bool(each) for each in node.input[:3]] for node in attentions(joined)] == given
    unused = {tensor.name for tensor in joined.graph.initializer} - {
        each for node in joined.graph.node for each in node.input
    }
    assert not unused, "weights that nobody reads would be loaded"


def test_packed_graphs_are_left_as_they_are() -> None:
    model = parsed("nano-llama")
    assert graph.joined_products(model) == model


@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen2"])
def test_packed_q_k_and_v_are_parted_for_adapters_with_few_storage_buffers(name: str) -> None:
    model = parsed(name)
    decoder = parse_genai_config((FIXTURES / name / "genai_config.json").read_bytes()).decoder
    sizes = {pair.past: pair.head_size for pair in graph.describe(model, decoder).cache}
    parted = packed_apart(model, sizes)
    assert operators(parted) - operators(model) == Counter({"Split": 2})
    assert all(all(node.input[:3]) for node in attentions(parted))
    for first, second in zip(logits_and_caches(model, name), logits_and_caches(parted, name), strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-5 * np.abs(first).max())
    assert packed_apart(parted, sizes) == parted
    assert packed_apart(model, {}) == model


def other_input(model: ModelProto, key: NodeProto) -> None:
    key.input[0] = model.graph.node[0].output[0]


def other_blocks(model: ModelProto, key: NodeProto) -> None:
    next(item for item in key.attribute if item.name == "block_size").i = 16


def shared_weights(model: ModelProto, key: NodeProto) -> None:
    twin = model.graph.node.add()
    twin.CopyFrom(key)
    twin.name, twin.output[0] = "twin", "twin"


def read_by_another(model: ModelProto, key: NodeProto) -> None:
    model.graph.node.add(name="twin", op_type="Identity", input=[key.output[0]], output=["twin"])


def in_another_file(model: ModelProto, key: NodeProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == key.input[1])
    next(item for item in tensor.external_data if item.key == "location").value = "other.data"


def inline(model: ModelProto, key: NodeProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == key.input[1])
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = bytes(16)


@pytest.mark.parametrize(
    "change", [other_input, other_blocks, shared_weights, read_by_another, in_another_file, inline]
)
def test_products_that_are_no_three_of_a_kind_stay_apart(change: Callable[[ModelProto, NodeProto], None]) -> None:
    model = parsed("nano-apart")
    for node in attentions(model):
        change(model, next(each for each in model.graph.node if node.input[1] in each.output))
    assert graph.joined_products(model) == model


def test_weights_within_the_model_file_are_joined_too() -> None:
    model = parsed("nano-apart")
    data = (FIXTURES / "nano-apart" / "model.onnx.data").read_bytes()
    plain = logits_and_caches(graph.joined_products(model), "nano-apart")
    entries = {entry.name: entry for entry in graph.external_entries(model)}
    for tensor in model.graph.initializer:
        if "attn" in tensor.name and tensor.name in entries:
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            tensor.raw_data = bytes_of(entries[tensor.name], data)
    joined = graph.joined_products(model)
    assert operators(joined)["MatMulNBits"] == 11
    for first, second in zip(plain, logits_and_caches(joined, "nano-apart"), strict=True):
        np.testing.assert_array_equal(first, second)
