"""Positions as text has them: the same logits, attention that rotates by itself, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from capstan import UnsupportedModelError, graph
from capstan.graph.onnx_pb2 import ModelProto, NodeProto
from tests.unit.graph_runs import logits_of

FAMILIES = Path(__file__).parents[1] / "fixtures" / "families"
NAMES = ("qwen2_5_vl_text", "qwen3_vl_text", "qwen3_5_text", "gemma4_text")
"""The last with positions of one axis."""


def parsed(name: str) -> ModelProto:
    return graph.parse((FAMILIES / name / "model.onnx").read_bytes())


def kinds(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def named(model: ModelProto, name: str) -> list[str]:
    """The input's dimensions, if there is one of that name."""
    found = [value for value in model.graph.input if value.name == name]
    return [dim.dim_param or str(dim.dim_value) for value in found for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", NAMES)
def test_attention_rotates_by_itself_and_the_logits_are_the_same(name: str, tmp_path: Path) -> None:
    before = parsed(name)
    after = graph.text_positions(before, "position_ids")
    assert kinds(before) & {"MRotaryEmbedding", "RotaryEmbedding"}
    assert not kinds(after) & {"MRotaryEmbedding", "RotaryEmbedding"}
    assert not named(after, "position_ids")
    wanted = logits_of(before, FAMILIES / name, tmp_path)
    np.testing.assert_allclose(logits_of(after, FAMILIES / name, tmp_path), wanted, atol=1e-4)


def with_a_cast(model: ModelProto) -> None:
    """Something between rotary embedding and attention, as exports in float16 have it."""
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    place = list(model.graph.node).index(attention)
    cast = NodeProto(op_type="Identity", name="between", input=[attention.input[0]], output=["rotated"])
    attention.input[0] = "rotated"
    model.graph.node.insert(place, cast)


def test_rotary_embedding_that_stays_takes_positions_of_one_axis(tmp_path: Path) -> None:
    before = parsed("qwen3_5_text")
    with_a_cast(before)
    after = graph.text_positions(before, "position_ids")
    assert "RotaryEmbedding" in kinds(after)
    assert named(after, "position_ids") == ["batch_size", "sequence_length"]
    folder = FAMILIES / "qwen3_5_text"
    np.testing.assert_allclose(logits_of(after, folder, tmp_path), logits_of(before, folder, tmp_path), atol=1e-4)


def test_another_reader_of_the_positions_is_named() -> None:
    model = parsed("qwen3_vl_text")
    model.graph.node.append(NodeProto(op_type="Cast", name="/other", input=["position_ids"], output=["positions"]))
    with pytest.raises(UnsupportedModelError, match=r"node /other \(Cast\) reads position_ids, positions of 3 axes"):
        graph.text_positions(model, "position_ids")


def test_a_model_without_positions_is_left() -> None:
    model = parsed("phi")
    assert graph.text_positions(model, "position_ids") is model


def other_positions(model: ModelProto, node: NodeProto) -> None:
    for each in [each for each in model.graph.node if each.op_type == "RotaryEmbedding"][:2]:
        each.input[1] = "later"


def scaled(model: ModelProto, node: NodeProto) -> None:
    node.attribute.add(name="scale", f=2.0)


def narrow_tables(model: ModelProto, node: NodeProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in node.input[2:]:
            tensor.dims[1] = 4


def read_elsewhere(model: ModelProto, node: NodeProto) -> None:
    model.graph.node.append(NodeProto(op_type="Identity", name="other", input=[node.output[0]], output=["seen"]))


@pytest.mark.parametrize("change", [other_positions, scaled, narrow_tables, read_elsewhere])
def test_what_attention_would_rotate_otherwise_stays_before_it(change: Callable[[ModelProto, NodeProto], None]) -> None:
    model = parsed("gemma4_text")
    nodes = [node for node in model.graph.node if node.op_type == "RotaryEmbedding"]
    change(model, nodes[0])
    after = graph.text_positions(model, "position_ids")
    assert [node.name for node in after.graph.node if node.op_type == "RotaryEmbedding"] == [
        node.name for node in nodes[:2]
    ]
    assert bool(named(after, "position_ids")) == any("position_ids" in node.input for node in after.graph.node)
