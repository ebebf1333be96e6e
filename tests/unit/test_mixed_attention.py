"""Attention in primitive operations beside GroupQueryAttention, as in exports of Gemma 4: onnxruntime judges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capstan
from capstan import ConfigError, ModelFileError, UnsupportedModelError
from capstan.graph import parse
from capstan.graph.carried import CachePair
from capstan.graph.mixed_attention import mixed_attention
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.products_apart import products_apart
from capstan.graph.spliced_embedding import embedding_before
from capstan.graph.weight_inputs import known_external_entries
from capstan.loading.embedded_repository import EMBEDDED
from tests.gemma4_export import Gemma4, Packed, quantized, write_repository
from tests.unit.graph_runs import Runner, operators
from tests.unit.media_models import refused

FOLDER = Path(__file__).parents[1] / "fixtures/repositories/nano-gemma4"
CASES = json.loads((FOLDER / "expected.json").read_text())["cases"]
LOCAL, FULL = "sliding_attention", "full_attention"
SIZES = Gemma4(
    vocabulary=64,
    hidden=64,
    inner=64,
    kinds=[LOCAL, FULL, LOCAL, FULL],
    shared=2,
    heads=4,
    kv_heads=2,
    head=32,
    full_head=64,
    layer_input=64,
    window=6,
    context=64,
    cap=30.0,
    others=(60, 61),
)
RANDOM = np.random.default_rng(1)


def matrix(name: str, rows: int, columns: int) -> Packed:
    return quantized(RANDOM.normal(0, columns**-0.5, (rows, columns)).astype(np.float32))


def vector(name: str, count: int) -> Any:
    return RANDOM.normal(1, 0.2, count).astype(np.float32)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, ModelProto]:
    """The decoder and the embedding graph."""
    folder = tmp_path_factory.mktemp("mixed")
    write_repository(folder, SIZES, matrix, vector, half=False)
    decoder, embedding = (onnx.load(folder / f"onnx/{name}_q4.onnx") for name in EMBEDDED)
    return decoder, parse(embedding.SerializeToString(), "")


def whole(graphs: tuple[onnx.ModelProto, ModelProto], change: Callable[[onnx.ModelProto], None]) -> ModelProto:
    """One graph of ids, after a change of the decoder."""
    model = onnx.ModelProto()
    model.CopyFrom(graphs[0])
    change(model)
    return embedding_before(parse(model.SerializeToString(), ""), graphs[1], "embed_tokens.onnx")


def layers() -> list[tuple[CachePair, CachePair]]:
    def pair(layer: int, part: str) -> CachePair:
        return CachePair(
            layer=layer,
            kind=part,
            past=f"past_key_values.{layer}.{part}",
            present=f"present.{layer}.{part}",
            heads=SIZES.kv_heads,
            head_size=SIZES.head_size(layer),
        )

    return [(pair(layer, "key"), pair(layer, "value")) for layer in range(SIZES.own)]


def rewritten(model: ModelProto) -> tuple[ModelProto, str]:
    return mixed_attention(model, layers(), SIZES.heads, "attention_mask", "position_ids")


def in_two_runs(model: ModelProto) -> Any:
    """The logits of ids, of pictures and sounds among them: a prompt, then one by one."""
    pairs = [pair for layer in layers() for pair in layer]
    presents = {pair.past: pair.present for pair in pairs}
    runner = Runner(model, presents, (1, 8), 0, num_logits_to_keep=np.array(0))
    runner.caches = {pair.past: np.zeros((1, pair.heads, 0, pair.head_size), np.float32) for pair in pairs}
    ids = [5, 60, 61, 63, *range(1, 45, 3)]
    return np.concatenate([runner.run(ids[:11]), *(runner.run([token]) for token in ids[11:])])


def unchanged(_: onnx.ModelProto) -> None:
    pass


def masks(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "Where"]


def swapped(model: onnx.ModelProto) -> None:
    """Masks that are true at hidden positions."""
    for node in masks(model):
        mask, scores, least = node.input
        node.input[:] = [f"{node.name}/hidden", least, scores]
        insert(model, node, helper.make_node("Not", [mask], [f"{node.name}/hidden"]))


def added(model: onnx.ModelProto) -> None:
    """Masks that are added, of products of q and k that are scaled."""
    for name, number in (("zero", 0.0), ("twice", 2.0), ("half", 0.5)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    for node in masks(model):
        mask, scores, least = node.input
        front = node.name
        insert(model, node, helper.make_node("Where", [mask, "zero", least], [f"{front}/bias"]))
        insert(model, node, helper.make_node("Mul", [scores, "twice"], [f"{front}/doubled"]))
        insert(model, node, helper.make_node("Mul", [f"{front}/doubled", "half"], [f"{front}/scaled"]))
        node.op_type = "Add"
        node.input[:] = [f"{front}/scaled", f"{front}/bias"]


def insert(model: onnx.ModelProto, before: onnx.NodeProto, node: onnx.NodeProto) -> None:
    place = next(i for i, each in enumerate(model.graph.node) if each.name == before.name)
    model.graph.node.insert(place, node)


def turned_apart(model: onnx.ModelProto) -> None:
    """Heads that are rotated after they were put apart."""
    for layer in (1, 2, 3):
        for part in "qk"[: 1 if layer > 1 else 2]:
            front = f"/model/layers.{layer}/attn/{part}"
            nodes = {node.name: node for node in model.graph.node}
            turned, reshape = nodes[f"{front}_rotary/RotaryEmbedding"], nodes[f"{front}/Reshape"]
            transpose = nodes[f"{front}/Transpose"]
            reshape.input[0] = turned.input[0]
            transpose.output[0], made = f"{front}/apart", transpose.output[0]
            model.graph.node.remove(turned)
            turned.input[0], turned.output[0] = transpose.output[0], made
            place = next(i for i, each in enumerate(model.graph.node) if each.name == transpose.name)
            model.graph.node.insert(place + 1, turned)


@pytest.mark.parametrize("change", [unchanged, swapped, added, turned_apart])
def test_logits_are_those_of_the_same_graph(
    change: Callable[[onnx.ModelProto], None], graphs: tuple[onnx.ModelProto, ModelProto]
) -> None:
    wanted = in_two_runs(whole(graphs, unchanged))
    made, why = rewritten(whole(graphs, change))
    assert (why, operators(made)["Softmax"], operators(made)["GroupQueryAttention"]) == ("", 0, len(SIZES.kinds))
    np.testing.assert_allclose(in_two_runs(made), wanted, rtol=0, atol=2e-4)


def other_window(model: onnx.ModelProto) -> None:
    [node] = [node for node in model.graph.node if node.name.endswith("/Greater")]
    node.op_type = "Less"


def sees_ahead(model: onnx.ModelProto) -> None:
    [node] = [node for node in model.graph.node if node.name.endswith("/LessOrEqual")]
    node.op_type = "GreaterOrEqual"


def small_fill(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(-5, np.float32), "few"))
    masks(model)[0].input[2] = "few"


def capped(model: onnx.ModelProto) -> None:
    node = masks(model)[0]
    insert(model, node, helper.make_node("Tanh", [node.input[1]], ["capped"]))
    node.input[1] = "capped"


def by_learned_mask(model: onnx.ModelProto) -> None:
    node = masks(model)[0]
    value = helper.make_tensor_value_info("learned", TensorProto.BOOL, [1, 1, 1, 1])
    model.graph.input.append(value)
    node.input[0] = "learned"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_window, "has a mask that is not causal, or has more than one window"),
        (sees_ahead, "has a mask that is not causal, or has more than one window"),
        (small_fill, "gives hidden positions the score -5.0"),
        (capped, "masks no product of q and k"),
        (by_learned_mask, "reads learned, which is neither a length nor a small constant"),
    ],
)
def test_what_is_another_attention_stays_and_is_named(
    change: Callable[[onnx.ModelProto], None], message: str, graphs: tuple[onnx.ModelProto, ModelProto]
) -> None:
    made, why = rewritten(whole(graphs, change))
    assert message in why
    assert operators(made)["Softmax"] == 3


@pytest.fixture(scope="module")
def model() -> capstan.Model:
    return capstan.Model(str(FOLDER), device="cpu")


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case: dict[str, Any], model: capstan.Model) -> None:
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(case["prompt"]) + len(case["ids"]))
    generator = capstan.Generator(model, params)
    generator.append_tokens(case["prompt"])
    ids = list[int]()
    while not generator.is_done():
        generator.generate_next_token()
        ids.append(int(generator.get_next_tokens()[0]))
    assert ids == case["ids"]


def test_the_files_tell_the_layers_with_caches_and_the_sampling(model: capstan.Model) -> None:
    assert model.config.decoder.num_hidden_layers == 3
    assert model.config.search == {"do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    assert model.config.eos_token_ids == (1, 271)


def test_repositories_whose_parts_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "gemma4"

    def attempt(kind: type[Exception], message: str, change: Callable[[dict[str, Any]], Any]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(FOLDER, folder)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        refused(kind, message, lambda: capstan.Model(str(folder), device="cpu"))

    text = "text_config"
    attempt(ConfigError, "config.json: text_config: missing", lambda config: config.pop(text))
    wanted = "text_config.num_kv_shared_layers: expected a number of layers from 0 to 4, got 5"
    attempt(ConfigError, wanted, lambda config: config[text].update(num_kv_shared_layers=5))
    attempt(
        ConfigError,
        "num_hidden_layers is 4, but the graph has 3",
        lambda config: config[text].update(num_kv_shared_layers=1),
    )

    def narrower(_: dict[str, Any]) -> None:
        file = folder / "onnx/embed_tokens_q4.onnx"
        found = onnx.load(file, load_external_data=False)
        found.graph.output[1].type.tensor_type.shape.dim[3].dim_value = 32
        onnx.save(found, file)

    attempt(UnsupportedModelError, "per_layer_inputs is float32 ['batch_size', 'sequence_length', 5, 32]", narrower)
    lacking = "lacks a graph of its model: its ONNX files are onnx/decoder_model_merged_q4.onnx; it needs"
    attempt(ModelFileError, lacking, lambda _: (folder / "onnx/embed_tokens_q4.onnx").unlink())


def test_a_mix_that_is_not_recognised_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "gemma4")
    file = folder / "onnx/decoder_model_merged_q4.onnx"
    found = onnx.load(file, load_external_data=False)
    sees_ahead(found)
    onnx.save(found, file)
    refused(UnsupportedModelError, "has a mask that is not causal", lambda: capstan.Model(str(folder), device="cpu"))


def test_sizes_of_the_large_ones() -> None:
    """E2B: every fifth layer attends to all positions; the last twenty read the caches of layers 13 and 14."""
    sizes = replace(SIZES, kinds=[FULL if place % 5 == 4 else LOCAL for place in range(35)], shared=20)
    assert [sizes.source(layer) for layer in (0, 14, 15, 34)] == [0, 14, 13, 14]


def test_rows_of_others_are_looked_up_by_a_table(graphs: tuple[onnx.ModelProto, ModelProto]) -> None:
    """onnxruntime computes the ids of all tokens once; in float16 values are cast once."""
    made = whole(graphs, unchanged)
    [lookup] = [node for node in made.graph.node if node.name.endswith("per_layer/Gather_Quant")]
    [gather] = [node for node in made.graph.node if lookup.input[1] in node.output]
    assert (gather.op_type, gather.input[1], operators(made)["Range"]) == ("Gather", "input_ids", 2)
    assert [node.op_type for node in made.graph.node if "input_ids" in node.input] == ["GatherBlockQuantized", "Gather"]


@pytest.mark.parametrize("half", [False, True])
def test_halves_of_a_product_are_two_products(half: bool, tmp_path: Path) -> None:
    write_repository(tmp_path, SIZES, matrix, vector, half=half)
    model = onnx.load(tmp_path / f"onnx/decoder_model_merged_q4{'f16' * half}.onnx", load_external_data=False)
    made = products_apart(parse(model.SerializeToString(), ""))
    assert (operators(made)["Split"], operators(made)["MatMulNBits"]) == (0, 30 + len(SIZES.kinds))
    for layer in range(len(SIZES.kinds)):
        front = f"/model/layers.{layer}/mlp"
        halves = [node for node in made.graph.node if node.name.startswith(f"{front}/gate_up_proj/")]
        outputs = [f"{front}/Split/output_{place}" for place in range(2)]
        assert [node.output[0] for node in halves] == outputs
    whole_bytes = {entry.name: entry for entry in known_external_entries(parse(model.SerializeToString(), ""))}
    entries = [entry for entry in known_external_entries(made) if "_from_" in entry.name]
    for entry in entries:
        name, first = entry.name.rsplit("_from_", 1)
        [part], [piece] = entry.pieces, whole_bytes[name].pieces
        rows = whole_bytes[name].dims[0]
        assert (part.offset, part.length) == (piece.offset + int(first) * piece.length // rows, piece.length // 2)
    assert len(entries) >= 4 * len(SIZES.kinds)  # small zero points are within the graph


def test_products_with_other_readers_stay_whole(tmp_path: Path) -> None:
    write_repository(tmp_path, SIZES, matrix, vector, half=False)
    model = onnx.load(tmp_path / "onnx/decoder_model_merged_q4.onnx", load_external_data=False)
    model.graph.output.append(
        helper.make_tensor_value_info("/model/layers.0/mlp/gate_up_proj/MatMul_Quant/output_0", TensorProto.FLOAT, None)
    )
    [sizes] = [each for each in model.graph.initializer if each.name == "/model/constants/INT64/[128, 128]"]
    sizes.CopyFrom(numpy_helper.from_array(np.array([96, 160]), sizes.name))
    made = products_apart(parse(model.SerializeToString(), ""))
    assert operators(made)["Split"] == 3
