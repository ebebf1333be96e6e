"""Norms before attention, as native onnxruntime computes them, are what attention does with them inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.uncomputed import uncomputed
from tests.attention_nodes import AttentionNode
from tests.unit.graph_runs import outputs

Array = np.ndarray[Any, np.dtype[Any]]
FIXTURES = Path(__file__).parents[1] / "fixtures"


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
    assert graph.norms_apart(model) == model
