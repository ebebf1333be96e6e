"""Rewritten graphs, and the notes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from capstan.device.webgpu import webgpu_graphs as graphs_module
from capstan.device.webgpu.webgpu_graphs import Graphs, model_graphs, rewrite
from capstan.errors import UncomputedError
from capstan.fallback import FallbackWarning, fallbacks
from capstan.model_files.genai_config import GenaiConfig
from tests.unit.fixture_models import MODELS, bytes_of, config_of, no_weights
from tests.unit.shelf import Shelf

FIXTURES = Path(__file__).parents[1] / "fixtures"
BUFFERS = 10
"""Storage buffers of a kernel."""


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that were rewritten."""
    seen: list[bytes] = []

    async def counted(data: bytes, *rest: Any) -> Graphs:
        seen.append(data)
        return await rewrite(data, *rest)

    monkeypatch.setattr(graphs_module, "rewrite", counted)
    return seen


def loaded(shelf: Shelf, data: bytes, config: GenaiConfig, folder: str = "http://here/nano/") -> Graphs:
    return asyncio.run(model_graphs(data, config, no_weights, folder, shelf.notes, BUFFERS))


@pytest.mark.parametrize("model", MODELS)
def test_noted_graphs_are_those_that_were_rewritten(model: str, rewrites: list[bytes]) -> None:
    shelf = Shelf()
    data, config = bytes_of(model), config_of(model)
    first, second = loaded(shelf, data, config), loaded(shelf, data, config)
    assert first == second == asyncio.run(rewrite(data, config, no_weights, BUFFERS))
    assert len(rewrites) == 1


def test_weights_that_cannot_be_gpu_buffers_are_refused() -> None:
    model = onnx.load_from_string(bytes_of("nano-llama"))
    weight = next(tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.UINT8)
    weight.data_type = onnx.TensorProto.INT8
    said = rf"weight {weight.name} is int8, for which onnxruntime-web takes no GPU buffer; .* device='wasm'"
    with pytest.raises(UncomputedError, match=said):
        asyncio.run(rewrite(model.SerializeToString(), config_of("nano-llama"), no_weights, BUFFERS))


def test_a_projection_that_is_not_found_is_over_all_positions_and_that_is_told() -> None:
    model = onnx.load_from_string(bytes_of("nano-llama"))
    made = next(node for node in model.graph.node if "logits" in node.output)
    made.output[0] = "large"
    model.graph.node.append(onnx.helper.make_node("Abs", ["large"], ["sizes"]))
    model.graph.node.append(onnx.helper.make_node("Sub", ["large", "sizes"], ["negative"]))
    model.graph.node.append(onnx.helper.make_node("Add", ["negative", "sizes"], ["logits"]))
    before = fallbacks()
    with pytest.warns(FallbackWarning, match=r"last position: .*joins 2 computed tensors; it is computed for all"):
        found = loaded(Shelf(), model.SerializeToString(), config_of("nano-llama"))
    assert sum(fallbacks().values()) == sum(before.values()) + 1
    prefill = onnx.load_from_string(found.sessions["prefill"].model)
    assert [dim.dim_value for dim in prefill.graph.output[0].type.tensor_type.shape.dim][1:] == [1, 512]
    decode = onnx.load_from_string(found.sessions["decoder"].model)
    assert [node.op_type for node in prefill.graph.node if "logits" in node.output] == ["Slice"]
    assert [node.op_type for node in decode.graph.node if "logits" in node.output] == ["Add"]


def other_bytes(data: bytes, config: GenaiConfig) -> tuple[bytes, GenaiConfig]:
    model = onnx.load_from_string(data)
    model.producer_name = "somebody else"
    return model.SerializeToString(), config


def other_config(data: bytes, config: GenaiConfig) -> tuple[bytes, GenaiConfig]:
    return data, replace(config, decoder=replace(config.decoder, filename="other.onnx"))


@pytest.mark.parametrize("change", [other_bytes, other_config])
def test_another_model_or_configuration_is_rewritten(
    change: Callable[[bytes, GenaiConfig], tuple[bytes, GenaiConfig]], rewrites: list[bytes]
) -> None:
    shelf = Shelf()
    data, config = bytes_of("nano-llama"), config_of("nano-llama")
    loaded(shelf, data, config)
    changed = change(data, config)
    assert loaded(shelf, *changed) == asyncio.run(rewrite(*changed, no_weights, BUFFERS))
    assert len(rewrites) == 2
    assert len(shelf.texts) == 1, "a folder has one note"


def test_another_capstan_rewrites(rewrites: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    data, config = bytes_of("nano-llama"), config_of("nano-llama")
    loaded(shelf, data, config)
    monkeypatch.setattr(graphs_module, "build", lambda: "another")
    loaded(shelf, data, config)
    assert len(rewrites) == 2


def test_damaged_and_unreadable_notes_are_made_anew(rewrites: list[bytes]) -> None:
    shelf = Shelf()
    data, config = bytes_of("nano-llama"), config_of("nano-llama")
    first = loaded(shelf, data, config)
    (name,) = shelf.texts
    shelf.texts[name] = shelf.texts[name].replace("A", "B")
    assert loaded(shelf, data, config) == first
    assert loaded(shelf, data, config) == first
    assert len(rewrites) == 2
    shelf.broken = "the shelf is gone"
    with pytest.warns(FallbackWarning, match="the shelf is gone"):
        assert loaded(shelf, data, config) == first
    assert len(rewrites) == 3


def test_graphs_with_constants_of_the_data_file_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    data, config = bytes_of("nano-llama"), config_of("nano-llama")

    async def with_constants(*given: Any) -> Graphs:
        return replace(await rewrite(*given), own=False)

    monkeypatch.setattr(graphs_module, "rewrite", with_constants)
    loaded(shelf, data, config)
    assert not shelf.texts


def test_without_notes_it_is_rewritten() -> None:
    data, config = bytes_of("nano-llama"), config_of("nano-llama")
    found = asyncio.run(model_graphs(data, config, no_weights, "http://here/nano/", None, BUFFERS))
    assert found.own


def test_products_by_quantized_weights_that_stay_are_told_at_each_load() -> None:
    before = sum(fallbacks().values())
    shelf = Shelf()
    model = onnx.load_from_string(bytes_of("nano-qdq"))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and "lm_head" in node.name:
            node.attribute[0].name, node.attribute[1].name = node.attribute[1].name, node.attribute[0].name
    data, config = model.SerializeToString(), config_of("nano-qdq")
    with pytest.warns(FallbackWarning, match="products by quantized weights: node /lm_head/"):
        first = loaded(shelf, data, config)
    assert loaded(shelf, data, config) == first
    assert first.unpacked.endswith("(1 such)")
    assert sum(fallbacks().values()) == before + 2
    decode = onnx.load_from_string(first.sessions["decoder"].model)
    assert [node.name for node in decode.graph.node if node.op_type == "MatMul"] == ["/lm_head/MatMul_matmul_Q4"]


def test_the_asked_for_accuracy_reaches_the_products() -> None:
    config = config_of("nano-qdq")
    for level in (1, 4):
        asked = replace(config, decoder=replace(config.decoder, qdq_accuracy=level))
        graphs = asyncio.run(rewrite(bytes_of("nano-qdq"), asked, no_weights, BUFFERS))
        assert {product.int8 for product in graphs.products} == {level == 4}


@pytest.mark.parametrize(("buffers", "splits"), [(8, 2), (9, 0)])
def test_where_kernels_bind_few_buffers_attention_reads_parts(buffers: int, splits: int) -> None:
    graphs = asyncio.run(rewrite(bytes_of("nano-apart"), config_of("nano-apart"), no_weights, buffers))
    nodes = onnx.load_from_string(graphs.sessions["decoder"].model).graph.node
    kinds = [node.op_type for node in nodes]
    assert (kinds.count("MatMulNBits"), kinds.count("Split")) == (11, splits)
    reads = [all(node.input[:3]) for node in nodes if node.op_type == "GroupQueryAttention"]
    assert reads == [splits > 0] * 2


def test_graphs_of_another_adapter_are_rewritten(rewrites: list[bytes]) -> None:
    shelf = Shelf()
    data, config = bytes_of("nano-apart"), config_of("nano-apart")
    for buffers in (8, 10, 10):
        asyncio.run(model_graphs(data, config, no_weights, "http://here/nano/", shelf.notes, buffers))
    assert len(rewrites) == 2


def test_graphs_of_an_adapter_that_binds_less_are_in_parts_and_told(rewrites: list[bytes]) -> None:
    """Each weight within the limit, in every graph; the note is of that limit alone."""
    shelf = Shelf()
    data, config = bytes_of("nano-blocks"), config_of("nano-blocks")

    def loaded_with(largest: int) -> Graphs:
        given = (no_weights, "http://here/nano/", shelf.notes, BUFFERS, None, largest)
        return asyncio.run(model_graphs(data, config, *given))

    assert loaded_with(1 << 17).split == ()
    said = (
        r"weights in one binding each: model.embed_tokens.weight has 131072 bytes \(and 1 more are too large\); this "
        r"adapter binds at most 20000; they are read in up to 8 parts"
    )
    with pytest.warns(FallbackWarning, match=said):
        found = loaded_with(20000)
    assert len(rewrites) == 2
    assert loaded_with(20000) == found
    assert len(rewrites) == 2
    assert [(each.name, each.parts) for each in found.split] == [
        ("model.embed_tokens.weight", 8),
        ("lm_head.MatMul.weight_Q4", 2),
    ]
    assert [(len(table.parts), table.size) for table in found.tables] == [(8, 64)]
    names = {entry.name for entry in found.weights}
    assert max(entry.length for entry in found.weights) <= 20000
    for serialized in (each.model for each in found.sessions.values()):
        model = onnx.load_from_string(serialized)
        assert {value.name for value in model.graph.input} >= names
        assert [node.op_type for node in model.graph.node if "logits" in node.output] == ["Concat"]
    assert found.projection == "", "both products are of the last position alone"
    assert loaded_with(1 << 17).split == ()
    assert len(rewrites) == 3
