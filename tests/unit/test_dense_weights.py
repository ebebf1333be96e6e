"""Weights of plain exports: q, k and v beside one another, and what each run would transpose, transposed at load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.graph_passes import rewritten
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from capstan.graph.rewriting import Rewriting
from capstan.graph.wiring import Wiring
from capstan.loading.repository import derived_config
from tests.unit.graph_runs import operators, outputs

OPTIMUM = Path(__file__).parents[1] / "fixtures" / "repositories" / "nano-optimum"
DATA = (OPTIMUM / "onnx" / "model.onnx").read_bytes()
IDS = [5, 6, 7, 8, 9]
CAPACITY = 64


def plain() -> ModelProto:
    """The rewritten export, its weights where they are in the file."""

    async def read(start: int, length: int) -> bytes:
        return DATA[start : start + length]

    small = asyncio.run(graph.without_weights(read, len(DATA), "model.onnx", "model.onnx"))
    model = graph.parse(small)
    config = derived_config((OPTIMUM / "config.json").read_bytes(), None, model, "onnx/model.onnx")[0]
    facts = Rewriting(config)
    found = rewritten(model, "layers on webgpu", facts)
    assert facts.unrecognised == ""
    return found


def logits(model: ModelProto) -> np.ndarray[Any, np.dtype[np.float32]]:
    feeds: dict[str, Any] = {}
    for i in (0, 1):
        for kind in ("key", "value"):
            feeds[f"past_key_values.{i}.{kind}"] = np.zeros((1, 2, CAPACITY, 16), np.float32)
    feeds |= {"input_ids": np.array([IDS]), "attention_mask": (np.arange(CAPACITY) < len(IDS)).astype(np.int64)[None]}
    names = [value.name for value in model.graph.output]
    found: np.ndarray[Any, np.dtype[np.float32]] = outputs(model, feeds, DATA)[names.index("logits")]
    return found


def with_biases(model: ModelProto) -> None:
    """A sum behind each of q, k and v (Qwen2)."""
    for node in [node for node in model.graph.node if "_proj/MatMul" in node.name and "self_attn/o" not in node.name]:
        if "self_attn" not in node.name:
            continue
        made, size = node.output[0], 64 if "q_proj" in node.name else 32
        bias = TensorProto(name=f"{node.name}.bias", data_type=TensorProto.FLOAT, dims=[size])
        bias.raw_data = np.linspace(-1, 1, size, dtype=np.float32).tobytes()
        model.graph.initializer.append(bias)
        node.output[0] = f"{made}.product"
        total = ModelProto().graph.node.add(op_type="Add", input=[bias.name, node.output[0]], output=[made])
        model.graph.node.insert(list(model.graph.node).index(node) + 1, total)


@pytest.mark.parametrize("change", [None, with_biases])
@pytest.mark.parametrize("packed", [True, False])
def test_q_k_and_v_are_one_product(change: Callable[[ModelProto], None] | None, packed: bool) -> None:
    model = plain()
    if change:
        change(model)
    joined = graph.joined_products(model, packed=packed)
    assert operators(joined)["MatMul"] == operators(model)["MatMul"] - 4
    assert operators(joined)["Split"] == (0 if packed else 2)
    for node in joined.graph.node:
        if node.op_type == "GroupQueryAttention":
            assert [bool(name) for name in node.input[:3]] == ([True, False, False] if packed else [True] * 3)
    np.testing.assert_allclose(logits(joined), logits(model), atol=1e-5)
    sizes = {name: entry.length for entry in graph.external_entries(model) for name in [entry.name]}
    assert sum(entry.length for entry in graph.external_entries(joined)) == sum(sizes.values())


def of_another_input(model: ModelProto) -> None:
    products = [node for node in model.graph.node if "k_proj/MatMul" in node.name]
    first = next(node for node in model.graph.node if "q_proj/MatMul" in node.name)
    products[1].input[0] = first.input[0]


def with_a_shared_weight(model: ModelProto) -> None:
    k, v = (next(node for node in model.graph.node if f"layers.1/self_attn/{p}_proj/MatMul" in node.name) for p in "kv")
    k.input[1] = v.input[1]


@pytest.mark.parametrize("change", [of_another_input, with_a_shared_weight])
def test_others_stay_apart(change: Callable[[ModelProto], None]) -> None:
    model = plain()
    change(model)
    assert operators(graph.joined_products(model))["MatMul"] == operators(model)["MatMul"] - 2


def tied(model: ModelProto) -> ModelProto:
    """The output projection by the embedding, transposed in each run."""
    head = next(node for node in model.graph.node if "logits" in node.output)
    place = list(model.graph.node).index(head)
    node = ModelProto().graph.node.add(op_type="Transpose", input=["model.embed_tokens.weight"], output=["turned"])
    node.attribute.add(name="perm", type=7, ints=[1, 0])
    model.graph.node.insert(place, node)
    head.input[1] = "turned"
    return model


def test_a_weight_that_each_run_would_transpose_is_transposed_at_load() -> None:
    model = tied(plain())
    found = graph.turned_weights(model)
    assert operators(model)["Transpose"] == 1
    assert operators(found)["Transpose"] == 0
    assert "model.embed_tokens.weight" in Wiring(found.graph).consumers
    np.testing.assert_allclose(logits(found), logits(model), atol=1e-5)


def test_a_transpose_of_something_else_stays() -> None:
    model = plain()
    head = next(node for node in model.graph.node if "logits" in node.output)
    node = ModelProto().graph.node.add(op_type="Transpose", input=[head.output[0]], output=["turned_logits"])
    node.attribute.add(name="perm", type=7, ints=[0, 2, 1])
    model.graph.node.append(node)
    model.graph.output.add().CopyFrom(next(value for value in model.graph.output if value.name == "logits"))
    model.graph.output[-1].name = "turned_logits"
    assert operators(graph.turned_weights(model))["Transpose"] == 1
