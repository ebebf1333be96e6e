"""The nodes around a recurrent state are rewritten to operators that onnxruntime-web computes: the same logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capstan import graph
from capstan.graph.onnx_pb2 import TensorProto
from tests.unit.graph_runs import logits_of

FAMILIES = Path(__file__).parents[1] / "fixtures" / "families"
QWEN = FAMILIES / "qwen3_5_text"
REPLACED = {"LpNormalization", "LinearAttentionGate", "GatedRMSNorm"}


@pytest.mark.parametrize(
    ("name", "replaced"), [("qwen3_5_text", REPLACED), ("qwen3_5_moe_text", REPLACED | {"GatedAdd"})]
)
def test_the_operators_are_plain_and_the_logits_the_same(name: str, replaced: set[str], tmp_path: Path) -> None:
    folder = FAMILIES / name
    before = graph.parse((folder / "model.onnx").read_bytes())
    after = graph.plain_recurrence(before)
    assert {node.op_type for node in before.graph.node} >= replaced
    assert not {node.op_type for node in after.graph.node} & replaced
    assert graph.uncapturable(graph.text_positions(after, "position_ids")) == []
    np.testing.assert_allclose(logits_of(after, folder, tmp_path), logits_of(before, folder, tmp_path), atol=1e-4)


def test_the_decay_is_computed_in_float32() -> None:
    model = graph.parse((QWEN / "model.onnx").read_bytes())
    for value in model.graph.value_info:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    after = graph.plain_recurrence(model)
    gate = [
        node for node in after.graph.node if node.name.startswith("/model/layers.0/linear_attn/LinearAttentionGate")
    ]
    assert [node.op_type for node in gate] == ["Cast", "Add", "Softplus", "Mul", "Cast", "Sigmoid"]
    assert [node.attribute[0].i for node in gate if node.op_type == "Cast"] == [TensorProto.FLOAT, TensorProto.FLOAT16]


def test_operators_of_unknown_sizes_stay() -> None:
    model = graph.parse((QWEN / "model.onnx").read_bytes())
    del model.graph.value_info[:]
    after = graph.plain_recurrence(model)
    assert {node.op_type for node in after.graph.node} >= REPLACED
