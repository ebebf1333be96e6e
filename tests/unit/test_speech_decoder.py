"""A speech decoder gets the inputs of a text decoder, its caches one size, and computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from capstan import graph
from capstan.graph.graph_passes import rewritten
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.parts import Angles
from capstan.graph.rewriting import Rewriting
from capstan.graph.speech_decoder import speech_decoder
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.graph_runs import Runner

FOLDER = Path(__file__).parents[1] / "fixtures/speech/nano-whisper"
CONFIG = parse_genai_config((FOLDER / "genai_config.json").read_text())
CAPACITY, HEADS, WIDTH, FRAMES = 64, 2, 16, 1500
NAMES = ("past_key_self_0", "input_ids", "attention_mask", "position_ids")


@pytest.fixture
def decoder() -> ModelProto:
    return graph.parse(onnx.load(str(FOLDER / "decoder.onnx")).SerializeToString())


def runner(model: ModelProto, capacity: int = 0) -> Runner:
    """A decoder in onnxruntime, its caches growing or of one size."""
    inputs, draws = [value.name for value in model.graph.input], np.random.default_rng(5)
    crosses = sorted(name for name in inputs if "cross" in name)
    heard = {name: draws.normal(0, 1, (1, HEADS, FRAMES, WIDTH)).astype(np.float32) for name in crosses}
    presents = {name: name.replace("past", "present") for name in inputs if "self" in name}
    return Runner(model, presents, (HEADS, WIDTH), capacity, **heard)


def test_logits_are_those_of_the_growing_cache_in_prompts_and_steps(decoder: ModelProto) -> None:
    growing = runner(decoder)
    facts = Rewriting(CONFIG)
    fixed = runner(rewritten(decoder, "webgpu", facts), CAPACITY)
    assert facts.unrecognised == ""
    for ids in ([5, 6, 7, 8], [11], [12], [100, 200, 300], [13]):
        np.testing.assert_allclose(fixed.run(ids), growing.run(ids), atol=2e-5)


def test_the_caches_have_one_size_and_are_attended_in_place(decoder: ModelProto) -> None:
    made = rewritten(decoder, "webgpu", Rewriting(CONFIG))
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("GroupQueryAttention") == kinds.count("MultiHeadAttention") == 2
    assert "Shape" not in kinds
    about = graph.describe(made, CONFIG.decoder, CONFIG.vocab_size)
    assert (about.growing, about.uncapturable, about.mask, about.position_ids) == ("", (), *NAMES[2:])
    assert graph.caches_in_place(made)
    assert [info.name for info in about.cross][::2] == ["past_key_cross_0", "past_value_cross_0"]


def test_one_product_makes_queries_keys_and_values_and_keys_have_a_bias_of_zeros() -> None:
    made = rewritten(graph.parse((FOLDER / "decoder.onnx").read_bytes()), "webgpu", Rewriting(CONFIG))
    attentions = [node for node in made.graph.node if node.op_type == "GroupQueryAttention"]
    assert [list(node.input[1:3]) for node in attentions] == [["", ""]] * 2
    makers = {node.output[0]: node for node in made.graph.node}
    width = HEADS * WIDTH
    for node in attentions:
        bias = next(each for each in graph.external_entries(made) if each.name == makers[node.input[0]].input[1])
        parts = [(part.made // 4, part.change) for part in bias.pieces]
        assert parts == [(width, None), (width, Angles("sin", 1, "A" * 171 + "=", 1.0, 32)), (width, None)]


def test_other_graphs_are_left_alone(decoder: ModelProto) -> None:
    fed = speech_decoder(decoder, *NAMES)
    assert fed != decoder
    assert speech_decoder(fed, *NAMES) == fed
    assert speech_decoder(decoder, "past_value_self_1", *NAMES[1:]) == decoder
    [table] = [node for node in decoder.graph.node if node.op_type == "Slice"]
    table.input[0] = "a table that a node makes"
    assert speech_decoder(decoder, *NAMES) == decoder
