"""Rotary tables that a graph computes are weights: their definition is what onnxruntime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan import graph
from capstan.graph import Angles
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from capstan.graph.wiring import prune, value_info
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_models import make
from tests.weight_bytes import angle_table

FIXTURES = Path(__file__).parents[1] / "fixtures"
TABLES = ("cos_cache", "sin_cache")
OPERATORS = {"Range", "Unsqueeze", "Mul", "Cos", "Sin", "Cast"}
"""Those that compute a table."""


def written(element: str = "float32", family: str = "llama") -> ModelProto:
    """The graph of a GGUF file."""
    return make(family, {"": GgmlType.Q4_0}).graph(element)


def computed(model: ModelProto, names: tuple[str, ...]) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Constants of a graph, as onnxruntime computes them."""
    alone = ModelProto()
    alone.CopyFrom(model)
    del alone.graph.output[:]
    alone.graph.output.extend(info for info in model.graph.value_info if info.name in names)
    del alone.graph.input[:], alone.graph.value_info[:], alone.graph.node[:]
    alone.graph.node.extend(node for node in model.graph.node if node.op_type in OPERATORS)
    prune(alone.graph)
    return list(onnxruntime.InferenceSession(alone.SerializeToString()).run(list(names), {}))


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("element", ["float32", "float16"])
def test_tables_of_a_graph_are_weights_with_what_it_computes(element: str, family: str) -> None:
    model = written(element, family)
    rewritten = graph.angle_tables(model)
    entries = {entry.name: entry for entry in graph.external_entries(rewritten)}
    assert not {"Range", "Cos", "Sin"} & {node.op_type for node in rewritten.graph.node}
    for name, expected in zip(TABLES, computed(model, TABLES), strict=True):
        [part] = entries[name].pieces
        assert isinstance(part.change, Angles)
        found = angle_table(part.change)
        assert (found.shape, found.dtype, entries[name].length) == (expected.shape, expected.dtype, expected.nbytes)
        np.testing.assert_allclose(found, expected, atol=1e-7 if element == "float32" else 1e-3)


def test_tables_are_scaled() -> None:
    model = written()
    [cos] = [node for node in model.graph.node if node.op_type == "Cos"]
    cos.output[0] = "plain"
    model.graph.initializer.add(name="scale", data_type=TensorProto.FLOAT, raw_data=np.float32(0.5).tobytes())
    scaled = model.graph.node.add(op_type="Mul", input=["plain", "scale"], output=["cos_cache"])
    model.graph.node.remove(scaled)
    model.graph.node.insert(list(model.graph.node).index(cos) + 1, scaled)
    [entry] = [entry for entry in graph.external_entries(graph.angle_tables(model)) if entry.name == "cos_cache"]
    change = entry.pieces[0].change
    assert isinstance(change, Angles)
    np.testing.assert_allclose(angle_table(change), computed(model, ("cos_cache",))[0], atol=1e-7)


def test_other_tables_stay_computed() -> None:
    """From another first position, over frequencies that are no constants, or as an output."""
    for name, value in (("start", 1.0), ("delta", 2.0)):
        model = written()
        for bound in model.graph.initializer:
            if bound.name.endswith(f"/{name}"):
                bound.raw_data = np.float32(value).tobytes()
        assert graph.angle_tables(model) == model
    model = written()
    model.graph.output.append(value_info("cos_cache", TensorProto.FLOAT, [64, 32]))
    assert {node.op_type for node in graph.angle_tables(model).graph.node} >= {"Cos"}


def test_graphs_without_such_tables_or_data_files_stay_as_they_are() -> None:
    model = graph.parse((FIXTURES / "nano-llama/model.onnx").read_bytes())
    assert graph.angle_tables(model) == model
