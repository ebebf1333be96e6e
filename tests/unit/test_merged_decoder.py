"""An encoder and a merged decoder become the pair that the model builder writes, and compute the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from capstan import ModelFileError, UnsupportedModelError, graph
from capstan.graph.merged_decoder import SpeechSizes, speech_graphs
from capstan.graph.onnx_pb2 import ModelProto
from tests.half_graphs import in_half

HUB = Path(__file__).parents[1] / "fixtures/speech/nano-whisper-hub"
ENCODER, DECODER = HUB / "onnx/encoder_model.onnx", HUB / "onnx/decoder_model_merged.onnx"
OLDER, FOUR_BITS = HUB / "others/older.onnx", HUB / "others/q4.onnx"
LAYERS, HEADS, WIDTH, FRAMES = 2, 2, 16, 1500
SIZES = SpeechSizes("encoder.onnx", "decoder.onnx", (80, 2 * FRAMES), FRAMES, LAYERS, HEADS, HEADS)
SOUND = np.random.default_rng(3).normal(0, 1, (1, 80, 2 * FRAMES)).astype(np.float32)
KINDS = [(layer, kind) for layer in range(LAYERS) for kind in ("key", "value")]


def parsed(model: Any) -> ModelProto:
    return graph.parse(model.SerializeToString())


def session(model: ModelProto) -> Any:
    return onnxruntime.InferenceSession(graph.serialize(model))


def run(made: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    wanted = {value.name for value in made.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in wanted}
    return dict(zip([value.name for value in made.get_outputs()], made.run(None, given), strict=True))


def logits_of_export(encoder: ModelProto, merged: ModelProto, runs: list[list[int]]) -> list[Any]:
    """The logits of onnxruntime over the two files, the first run by the branch without caches."""
    feeds: dict[str, Any] = {"encoder_hidden_states": session(encoder).run(None, {"input_features": SOUND})[0]}
    empty = np.zeros((1, HEADS, 0, WIDTH), np.float32)
    feeds |= {f"past_key_values.{n}.{source}.{kind}": empty for n, kind in KINDS for source in ("decoder", "encoder")}
    made, found = session(merged), []
    for place, ids in enumerate(runs):
        given = {"input_ids": np.array([ids]), "use_cache_branch": np.array([place > 0])}
        results = run(made, {**feeds, **given})
        found.append(results["logits"])
        sources = ("decoder", "encoder") if place == 0 else ("decoder",)
        names = [f"{n}.{source}.{kind}" for n, kind in KINDS for source in sources]
        feeds |= {f"past_key_values.{name}": results[f"present.{name}"] for name in names}
    return found


def logits_of_pair(encoder: ModelProto, decoder: ModelProto, runs: list[list[int]], dtype: type) -> list[Any]:
    heard = run(session(encoder), {"input_features": SOUND})
    feeds: dict[str, Any] = {name.replace("present", "past_key_values"): value for name, value in heard.items()}
    feeds |= {f"past_key_values.{n}.decoder.{kind}": np.zeros((1, HEADS, 0, WIDTH), dtype) for n, kind in KINDS}
    made, found = session(decoder), []
    for ids in runs:
        results = run(made, {**feeds, "input_ids": np.array([ids])})
        found.append(results.pop("logits"))
        feeds |= {name.replace("present", "past_key_values"): value for name, value in results.items()}
    return found


@pytest.mark.parametrize("file", [DECODER, OLDER, FOUR_BITS], ids=lambda path: path.stem)
def test_logits_are_those_of_the_export_in_prompts_and_steps(file: Path) -> None:
    encoder, merged = parsed(onnx.load(ENCODER)), parsed(onnx.load(file))
    runs = [[5, 6, 7, 8], [11], [12]]
    pair = speech_graphs(encoder, merged, SIZES)
    for one, other in zip(
        logits_of_pair(*pair, runs, np.float32), logits_of_export(encoder, merged, runs), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=3e-5)


@pytest.mark.parametrize("file", [DECODER, OLDER], ids=lambda path: path.stem)
def test_several_tokens_over_caches_are_causal_whatever_the_export_was_traced_with(file: Path) -> None:
    encoder, merged = parsed(onnx.load(ENCODER)), parsed(onnx.load(file))
    pair = speech_graphs(encoder, merged, SIZES)
    _, together = logits_of_pair(*pair, [[5, 6], [7, 8, 9]], np.float32)
    _, *one_by_one = logits_of_export(encoder, merged, [[5, 6], [7], [8], [9]])
    np.testing.assert_allclose(together, np.concatenate(one_by_one, axis=1), atol=3e-5)


def test_graphs_in_float16_lose_the_casts_around_them() -> None:
    encoder, merged = (parsed(in_half(onnx.load(file))) for file in (ENCODER, DECODER))
    pair = speech_graphs(encoder, merged, SIZES)
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*pair[1].graph.input, *pair[1].graph.output)}
    assert {kind for name, kind in kinds.items() if name != "input_ids"} == {onnx.TensorProto.FLOAT16}
    assert [node.op_type for node in pair[1].graph.node].count("Cast") == 0
    runs = [[5, 6, 7, 8], [11], [12]]
    for one, other in zip(
        logits_of_pair(*pair, runs, np.float16), logits_of_export(encoder, merged, runs), strict=True
    ):
        np.testing.assert_allclose(one.astype(np.float32), other, atol=0.15)


@pytest.mark.parametrize("file", [DECODER, OLDER], ids=lambda path: path.stem)
def test_attention_norms_and_activations_are_one_operator_each(file: Path) -> None:
    encoder, decoder = speech_graphs(parsed(onnx.load(ENCODER)), parsed(onnx.load(file)), SIZES)
    kinds = Counter(node.op_type for node in decoder.graph.node)
    assert kinds == Counter(
        Add=22, MatMul=17, LayerNormalization=7, MultiHeadAttention=4, Gather=3, Shape=2, Gelu=2, Slice=1
    )
    kinds = Counter(node.op_type for node in encoder.graph.node)
    assert kinds["MultiHeadAttention"] == 2
    assert kinds["Gelu"] == 4
    assert not kinds.keys() & {"Softmax", "Erf", "If"}
    assert [value.name for value in encoder.graph.output] == [f"present.{n}.encoder.{kind}" for n, kind in KINDS]
    assert [value.name for value in encoder.graph.input] == ["input_features"]


def test_weights_that_layers_share_by_identities_are_read_through_them() -> None:
    merged = parsed(onnx.load(OLDER))
    inner = next(item.g for item in merged.graph.node[-1].attribute if item.name == "then_branch")
    shared = next(each.name for each in merged.graph.initializer if each.name.endswith("layer_norm.weight_merged_0"))
    for node in inner.node:
        node.input[:] = ["shared" if name == shared else name for name in node.input]
    inner.node.add(op_type="Identity", input=[shared], output=["shared"])
    _, decoder = speech_graphs(parsed(onnx.load(ENCODER)), merged, SIZES)
    assert Counter(node.op_type for node in decoder.graph.node)["LayerNormalization"] == 7


def test_an_older_operator_set_is_raised() -> None:
    merged = parsed(onnx.load(OLDER))
    merged.opset_import[0].version = 12
    _, decoder = speech_graphs(parsed(onnx.load(ENCODER)), merged, SIZES)
    assert {item.domain: item.version for item in decoder.opset_import}[""] == 13


def narrow(encoder: ModelProto, merged: ModelProto) -> None:
    encoder.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 48


def without_if(encoder: ModelProto, merged: ModelProto) -> None:
    merged.graph.node[-1].op_type = "Loop"


def without_layer(encoder: ModelProto, merged: ModelProto) -> None:
    [place] = [n for n, value in enumerate(merged.graph.input) if value.name == "past_key_values.1.decoder.key"]
    del merged.graph.input[place]


def masked_by_ids(encoder: ModelProto, merged: ModelProto) -> None:
    inner = next(item.g for item in merged.graph.node[-1].attribute if item.name == "then_branch")
    softmax = next(node for node in inner.node if node.op_type == "Softmax")
    added = next(node for node in inner.node if softmax.input[0] in node.output)
    added.input[1] = "encoder_hidden_states"


def test_a_circle_in_a_branch_is_refused() -> None:
    merged = parsed(onnx.load(DECODER))
    inner = next(item.g for item in merged.graph.node[-1].attribute if item.name == "then_branch")
    inner.node.add(op_type="Identity", input=["b"], output=["a"])
    inner.node.add(op_type="Identity", input=["a"], output=["b"])
    with pytest.raises(
        ModelFileError, match=r"^decoder\.onnx: the node .* reads its own output; export the model again"
    ):
        speech_graphs(parsed(onnx.load(ENCODER)), merged, SIZES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (narrow, "encoder.onnx makes rows of 48 numbers, but decoder.onnx reads rows of 32; use files of one model"),
        (without_if, "decoder.onnx has no If node over use_cache_branch; use an export of Optimum"),
        (without_layer, "has no input past_key_values.1.decoder.key, but config.json has 2 layers"),
        (masked_by_ids, "decoder.onnx: .* is not over a product of queries and keys; use an export of Optimum"),
    ],
)
def test_graphs_that_do_not_fit_are_named(change: Callable[[ModelProto, ModelProto], None], message: str) -> None:
    encoder, merged = parsed(onnx.load(ENCODER)), parsed(onnx.load(DECODER))
    change(encoder, merged)
    with pytest.raises(UnsupportedModelError, match=message):
        speech_graphs(encoder, merged, SIZES)
