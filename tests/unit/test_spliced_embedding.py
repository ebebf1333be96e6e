"""A decoder behind its embedding graph computes what both compute one after the other, with and without features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from capstan.errors import UnsupportedModelError
from capstan.graph import parse, serialize
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.spliced_embedding import placeholder, spliced_embedding, with_places, without_places
from capstan.model_files.genai_config import FEATURES, PLACES
from capstan.model_files.genai_config_file import parse_genai_config

FOLDER = Path(__file__).parents[1] / "fixtures/vision/nano-gemma3-vl"
VISION = parse_genai_config((FOLDER / "genai_config.json").read_bytes()).vision
assert VISION is not None
NAMES = VISION.embedding
SOFT = 287
HIDDEN, ROWS = 32, 5


def graph(name: str) -> ModelProto:
    return parse((FOLDER / name).read_bytes(), name)


@pytest.fixture(scope="module")
def whole() -> ModelProto:
    return spliced_embedding(graph("model.onnx"), graph("embedding.onnx"), NAMES)


def logits(model: bytes, inputs: dict[str, Any]) -> Any:
    """Runs a sequence of 8 tokens, whose caches have room for a window."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(FOLDER))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = {"attention_mask": np.ones((1, 8), np.int64), **inputs}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            given[value.name] = np.zeros((1, 1, 512, 16), np.float32)
    return session.run(["logits"], given)[0]


IDS = np.array([[2, 40, 41, 42, 43, 44, 45, 46]], np.int64)
MIXED = np.array([[2, SOFT, SOFT, 42, SOFT, 44, SOFT, SOFT]], np.int64)
SEEN = np.random.default_rng(1).normal(size=(ROWS, HIDDEN)).astype(np.float32)
TEXT = np.full((1, 8), -1, np.int32)


def apart(ids: Any, features: Any) -> Any:
    """By the two graphs of the folder."""
    session = onnxruntime.InferenceSession(str(FOLDER / "embedding.onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"input_ids": ids, "image_features": features})
    return logits((FOLDER / "model.onnx").read_bytes(), {"inputs_embeds": found})


def test_it_computes_what_both_graphs_compute(whole: ModelProto) -> None:
    data = serialize(whole)
    text = logits(data, {"input_ids": IDS, FEATURES: SEEN, PLACES: TEXT})
    assert np.array_equal(text, apart(IDS, np.zeros((0, HIDDEN), np.float32)))
    places = np.array([[-1, 0, 1, -1, 2, -1, 3, 4]], np.int32)
    mixed = logits(data, {"input_ids": MIXED, FEATURES: SEEN, PLACES: places})
    assert np.array_equal(mixed, apart(MIXED, SEEN))
    assert not np.allclose(mixed, logits(data, {"input_ids": MIXED, FEATURES: SEEN, PLACES: TEXT}))


def test_places_are_left_out_and_put_back(whole: ModelProto) -> None:
    plain, placing = without_places(whole)
    assert placing is not None
    assert {FEATURES, PLACES}.isdisjoint(value.name for value in plain.graph.input)
    assert len(plain.graph.node) == len(whole.graph.node) - 5
    text = logits(serialize(plain), {"input_ids": IDS})
    assert np.array_equal(text, logits(serialize(whole), {"input_ids": IDS, FEATURES: SEEN, PLACES: TEXT}))
    again = with_places(plain, placing)
    places = np.array([[-1, 4, 3, 2, 1, 0, -1, -1]], np.int32)
    given = {"input_ids": MIXED, FEATURES: SEEN, PLACES: places}
    assert np.array_equal(logits(serialize(again), given), logits(serialize(whole), given))
    assert [info.name for info in placing.inputs()] == [FEATURES, PLACES]
    assert without_places(plain) == (plain, None)


def test_a_scatter_places_features_too(whole: ModelProto) -> None:
    embedding = onnx.load(FOLDER / "embedding.onnx")
    del embedding.graph.node[5:]
    helper = onnx.helper
    embedding.graph.node.extend(
        [
            helper.make_node("NonZero", ["mask"], ["found"]),
            helper.make_node("Transpose", ["found"], ["where"]),
            helper.make_node("ScatterND", ["texts", "where", "image_features"], ["inputs_embeds"]),
        ]
    )
    made = spliced_embedding(graph("model.onnx"), parse(embedding.SerializeToString(), "e"), NAMES)
    given = {"input_ids": MIXED, FEATURES: SEEN, PLACES: np.array([[-1, 0, 1, -1, 2, -1, 3, 4]], np.int32)}
    assert np.array_equal(logits(serialize(made), given), logits(serialize(whole), given))


def test_the_placeholder_is_read_from_the_graph() -> None:
    assert placeholder(graph("embedding.onnx"), NAMES) == SOFT
    other = graph("embedding.onnx")
    for node in other.graph.node:
        if node.op_type == "Equal":
            node.op_type = "Greater"
    with pytest.raises(UnsupportedModelError, match="input_ids is compared with no id"):
        placeholder(other, NAMES)


def changed(**kinds: str) -> ModelProto:
    model = graph("embedding.onnx")
    for node in model.graph.node:
        node.op_type = kinds.get(node.op_type, node.op_type)
    return model


def test_graphs_that_are_not_understood_are_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match="is made by Max; it must come from one of Where, ScatterND, ScatterElements"
    ):
        spliced_embedding(graph("model.onnx"), changed(Where="Max"), NAMES)
    other = changed(Mul="Softmax")
    with pytest.raises(UnsupportedModelError, match=r"operators have version 18, the decoder's have \d+ .*Softmax"):
        spliced_embedding(graph("model.onnx"), other, NAMES)
