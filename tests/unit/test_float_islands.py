"""Float32 nodes between two casts become float16 nodes, if that changes rounding alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from capstan import graph
from capstan.graph import graph_passes, wiring
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.onnx_pb2 import TensorProto as CapstanTensor
from tests.unit.graph_runs import operators, outputs
from tests.weight_bytes import bytes_of

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
TOKENS, HEADS, HEAD = 4, 2, 16
WIDTH = HEADS * HEAD
random = np.random.default_rng(5)
WEIGHTS = {
    "scale": (1 + 0.2 * random.normal(size=HEAD)).astype(np.float32),
    "gamma": (1 + 0.2 * random.normal(size=WIDTH)).astype(np.float32),
    "cos": np.cos(np.outer(np.arange(8), 0.7 ** np.arange(HEAD // 2))).astype(np.float32),
    "sin": np.sin(np.outer(np.arange(8), 0.7 ** np.arange(HEAD // 2))).astype(np.float32),
}


def cast(source: str, made: str, to: int) -> Any:
    return helper.make_node("Cast", [source], [made], to=to)


def norm(source: str, made: str, scale: str = "gamma", epsilon: float = 1e-6) -> Any:
    return helper.make_node("SimplifiedLayerNormalization", [source, scale], [made], axis=-1, epsilon=epsilon)


def skip_norm(inputs: list[str], outputs: list[str]) -> Any:
    made = [outputs[0], "", "", *outputs[1:]]
    kind = "SkipSimplifiedLayerNormalization"
    return helper.make_node(kind, [*inputs, "gamma"], made, domain="com.microsoft", epsilon=1e-6)


def model_of(nodes: list[Any], outputs: Mapping[str, int], inputs: Mapping[str, int] | None = None) -> ModelProto:
    shape = [1, TOKENS, WIDTH]
    given = {"x": HALF} if inputs is None else inputs
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind in given.items()]
    values.append(helper.make_tensor_value_info("positions", TensorProto.INT64, [1, TOKENS]))
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    constants = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    constants.append(numpy_helper.from_array(np.array([0, -1, HEAD]), "by head"))
    constants.append(numpy_helper.from_array(np.array([0, -1, WIDTH]), "by token"))
    body = helper.make_graph(nodes, "island", values, made, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    whole = helper.make_model(body, opset_imports=opsets, ir_version=8)
    return graph.parse(whole.SerializeToString())


def results(model: ModelProto, *names: str) -> list[Any]:
    draws = np.random.default_rng(8)
    feeds: dict[str, Any] = {name: (3 * draws.normal(size=(1, TOKENS, WIDTH))).astype(np.float16) for name in names}
    feeds["positions"] = np.arange(TOKENS)[None]
    return outputs(model, feeds)


def normed_and_rotated() -> ModelProto:
    """As the model builder writes q of a decoder whose norms and rotary embedding are in float32."""
    nodes = [
        helper.make_node("Reshape", ["x", "by head"], ["heads"]),
        cast("heads", "heads f32", FLOAT),
        norm("heads f32", "normed", "scale"),
        helper.make_node("Reshape", ["normed", "by token"], ["rows"]),
        helper.make_node(
            "RotaryEmbedding", ["rows", "positions", "cos", "sin"], ["turned"], domain="com.microsoft", num_heads=HEADS
        ),
        cast("turned", "turned f16", HALF),
        helper.make_node("Add", ["turned f16", "x"], ["y"]),
    ]
    return model_of(nodes, {"y": HALF})


def test_tables_that_sequences_feed_become_float16_under_another_name() -> None:
    model = normed_and_rotated()
    for name in ("cos", "sin"):
        value = model.graph.input.add(name=name)
        value.type.tensor_type.elem_type = FLOAT
    wiring.delete(model.graph.initializer, lambda tensor: tensor.name in ("cos", "sin"))
    none = graph.TableRows("", 0, 0, 0)
    tables = tuple(graph.RopeTable(name, "float32", HEAD // 2, none, none) for name in ("cos", "sin"))
    facts: Any = SimpleNamespace(rope=graph.LongRope(0, tables, (2, 3, 3)))
    rewritten = graph_passes.islands_in_half(model, facts)
    assert operators(rewritten) == operators(model) - Counter(Cast=2)
    found = {value.name: value.type.tensor_type.elem_type for value in rewritten.graph.input}
    assert found == {"x": HALF, "positions": TensorProto.INT64, "cos_in_half": HALF, "sin_in_half": HALF}
    told = [(table.name, table.dtype, table.stored) for table in facts.rope.tables]
    assert told == [(name, "float16", "float32") for name in ("cos_in_half", "sin_in_half")]


def test_a_norm_and_rotary_embedding_take_float16() -> None:
    model = normed_and_rotated()
    rewritten = graph.float_islands_in_half(model)
    assert operators(model)["Cast"] == 2
    assert operators(rewritten) == operators(model) - Counter(Cast=2)
    [before], [after] = results(model, "x"), results(rewritten, "x")
    assert after.dtype == np.float16
    assert np.abs(before.astype(float) - after.astype(float)).max() < 4e-3 * np.abs(before.astype(float)).max()
    assert graph.serialize(model) == graph.serialize(normed_and_rotated()), "a pass leaves its argument alone"


def test_weights_of_a_data_file_become_float16_as_they_are_loaded() -> None:
    model = normed_and_rotated()
    data = b""
    for tensor in model.graph.initializer:
        if tensor.name in WEIGHTS:
            raw, tensor.raw_data = tensor.raw_data, b""
            tensor.data_location = CapstanTensor.EXTERNAL
            for key, value in (("location", "d"), ("offset", str(len(data))), ("length", str(len(raw)))):
                tensor.external_data.add(key=key, value=value)
            data += raw
    entries = {entry.name: entry for entry in graph.external_entries(graph.float_islands_in_half(model))}
    for name in ("scale", "cos", "sin"):
        entry = entries[f"{name}_in_half"]
        assert (entry.dtype, entry.dims) == ("float16", WEIGHTS[name].shape)
        assert bytes_of(entry, data) == WEIGHTS[name].astype(np.float16).tobytes()
    assert "scale" not in entries


def test_a_sum_and_its_norm_between_casts_take_float16() -> None:
    nodes = [
        cast("x", "x f32", FLOAT),
        cast("skip", "skip f32", FLOAT),
        skip_norm(["x f32", "skip f32"], ["normed", "sum"]),
        cast("normed", "normed f16", HALF),
        cast("sum", "sum f16", HALF),
        helper.make_node("Mul", ["normed f16", "sum f16"], ["y"]),
    ]
    inputs = {"x": HALF, "skip": HALF}
    model = model_of(nodes, {"y": HALF}, inputs)
    rewritten = graph.float_islands_in_half(model)
    assert operators(rewritten) == Counter(SkipSimplifiedLayerNormalization=1, Mul=1)
    [before], [after] = results(model, *inputs), results(rewritten, *inputs)
    assert np.abs(before.astype(float) - after.astype(float)).max() < 4e-3 * np.abs(before.astype(float)).max()


RESIDUAL = [
    cast("x", "x f32", FLOAT),
    skip_norm(["x f32", "x f32"], ["first", "stream"]),
    cast("first", "first f16", HALF),
    cast("first f16", "back", FLOAT),
    skip_norm(["stream", "back"], ["second"]),
    cast("second", "y", HALF),
]
"""Sums handed on in float32."""

LEFT = {
    "a residual stream in float32": (RESIDUAL, {"y": HALF}),
    "a cast that others read": (
        [
            cast("x", "f", FLOAT),
            norm("f", "n"),
            cast("n", "y", HALF),
            helper.make_node("Exp", ["f"], ["e"]),
        ],
        {"y": HALF, "e": FLOAT},
    ),
    "a result that is told in float32": ([cast("x", "f", FLOAT), norm("f", "n"), cast("n", "y", HALF)], {"n": FLOAT}),
    "a result that others read": (
        [
            cast("x", "f", FLOAT),
            norm("f", "n"),
            cast("n", "y", HALF),
            helper.make_node("Exp", ["n"], ["e"]),
        ],
        {"y": HALF, "e": FLOAT},
    ),
    "an epsilon that float16 does not hold": (
        [cast("x", "f", FLOAT), norm("f", "n", epsilon=1e-12), cast("n", "y", HALF)],
        {"y": HALF},
    ),
    "values of integers": (
        [cast("positions", "f", FLOAT), norm("f", "n"), cast("n", "y", HALF)],
        {"y": HALF},
    ),
}


@pytest.mark.parametrize("what", LEFT)
def test_other_float32_nodes_stay(what: str) -> None:
    model = model_of(*LEFT[what])
    assert graph.float_islands_in_half(model) is model
