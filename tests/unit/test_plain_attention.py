"""Attention in primitive operations over caches that grow becomes GroupQueryAttention, or the graph is unchanged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

from capstan import graph
from capstan.errors import UnsupportedModelError
from capstan.graph import graph_passes
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.rewriting import Rewriting
from capstan.loading.repository import derived_config
from capstan.model_files.genai_config import GenaiConfig
from tests import oracle
from tests.unit.graph_runs import Runner

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPTIMUM = FIXTURES / "repositories" / "nano-optimum"
CACHES = [
    (f"past_key_values.{i}.key", f"past_key_values.{i}.value", f"present.{i}.key", f"present.{i}.value") for i in (0, 1)
]
HEADS = (4, 2, 16)
CONTEXT = 512


def plain() -> ModelProto:
    return graph.parse((OPTIMUM / "onnx" / "model.onnx").read_bytes())


def rewritten(model: ModelProto) -> tuple[ModelProto, str]:
    return graph.group_query_attention(model, CACHES, HEADS, CONTEXT)


def runner(
    model: ModelProto,
    capacity: int = 0,
    caches: Sequence[tuple[str, str, str, str]] = CACHES,
    shape: tuple[int, int] = (2, 16),
) -> Runner:
    """A decoder in onnxruntime, its caches growing or of one size."""
    presents = {past: present for cache in caches for past, present in zip(cache[:2], cache[2:], strict=True)}
    return Runner(model, presents, shape, capacity)


def test_logits_are_those_of_the_growing_cache_in_prompts_and_steps() -> None:
    model, reason = rewritten(plain())
    assert reason == ""
    growing, fixed = runner(plain()), runner(model, 64)
    for ids in ([5, 6, 7, 8, 9], [11], [12], [100, 200, 300], [13], list(range(40, 71)), [14]):
        np.testing.assert_allclose(fixed.run(ids), growing.run(ids), atol=2e-4)


@pytest.mark.parametrize("kept", [["logits"], True])
def test_so_are_those_of_float16(kept: bool | list[str]) -> None:
    """As repositories have it; `kept` says which inputs and outputs stay float32: all caches, or none of them."""
    whole = onnx.load_from_string((OPTIMUM / "onnx" / "model.onnx").read_bytes())
    half = convert_float_to_float16(whole, keep_io_types=kept, disable_shape_infer=True)
    model = graph.parse(half.SerializeToString())
    fixed, reason = rewritten(model)
    assert reason == ""
    held = [value for value in [*fixed.graph.input, *fixed.graph.output] if value.name[:4] in ("past", "pres")]
    assert [value.type.tensor_type.elem_type for value in held] == [TensorProto.FLOAT16] * 8
    growing, one_size, normed = runner(model), runner(fixed, 64), runner(graph.simplified_norms(fixed), 64)
    for ids in ([5, 6, 7, 8, 9], [11], [100, 200, 300], [13]):
        wanted = growing.run(ids)
        np.testing.assert_allclose(one_size.run(ids), wanted, atol=5e-2)
        np.testing.assert_allclose(normed.run(ids), wanted, atol=5e-2)


def test_heads_may_be_taken_as_they_are() -> None:
    model = plain()
    makers = {node.output[0]: node for node in model.graph.node}
    for total in nodes(model, "Add", "self_attn"):
        straight = makers.get(total.input[0])
        if straight is not None and straight.op_type == "Mul":
            for node in model.graph.node:
                for place, name in enumerate(node.input):
                    if name == total.output[0]:
                        node.input[place] = straight.input[0]
    fixed, reason = rewritten(model)
    assert reason == ""
    growing, one_size = runner(model), runner(fixed, 64)
    assert any(abs(runner(plain()).run([5, 6, 7]) - runner(model).run([5, 6, 7])).ravel() > 0.1)
    for ids in ([5, 6, 7, 8, 9], [11], [100, 200, 300]):
        np.testing.assert_allclose(one_size.run(ids), growing.run(ids), atol=2e-4)


def test_greedy_ids_are_those_of_the_genai_export_of_the_same_weights() -> None:
    one = runner(rewritten(plain())[0], 64)
    ids = [5, 6, 7, 8, 9]
    picked = []
    for _ in range(24):
        picked.append(int(one.run(ids)[-1].argmax()))
        ids = picked[-1:]
    assert picked == oracle.greedy(FIXTURES / "nano-float", [5, 6, 7, 8, 9], 24)


def decode_graph(model: ModelProto, config: GenaiConfig) -> tuple[ModelProto, graph.GraphDescription]:
    facts = Rewriting(config)
    made = graph_passes.rewritten(graph_passes.rewritten(model, "webgpu", facts), "decode", facts)
    return made, facts.about


def test_what_is_left_can_be_captured_and_described() -> None:
    config = derived_config((OPTIMUM / "config.json").read_bytes(), None, plain(), "onnx/model.onnx")[0]
    model, about = decode_graph(plain(), config)
    assert about.capturable
    assert (about.uncapturable, about.position_ids, about.cache_dtype) == ((), None, "float32")
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("GroupQueryAttention") == 2
    assert {"Softmax", "Expand", "Concat", "Shape", "Trilu"}.isdisjoint(kinds)
    prefill, reason = graph.last_token_logits(model)
    assert reason == ""
    assert graph.lengths_as_inputs(prefill)[2] == ""


def test_cosines_and_sines_are_as_large_as_the_graph_has_them() -> None:
    model = plain()
    doubled(model, WAVES, "self_attn")
    fixed, reason = rewritten(model)
    assert reason == ""
    np.testing.assert_allclose(runner(fixed, 64).run([5, 6, 7]), runner(model).run([5, 6, 7]), atol=2e-4)


def test_they_are_of_the_caches_type() -> None:
    model = plain()
    for value in model.graph.input:
        if "past" in value.name:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    found = rewritten(model)[0]
    made = {node.output[0]: node for node in found.graph.node}
    attention = next(node for node in found.graph.node if node.op_type == "GroupQueryAttention")
    casts = [made[attention.input[place]] for place in (7, 8)]
    assert [(node.op_type, node.attribute[0].i) for node in casts] == [("Cast", TensorProto.FLOAT16)] * 2


def test_other_graphs_come_back_as_they_are() -> None:
    model = graph.parse((FIXTURES / "nano-llama" / "model.onnx").read_bytes())
    assert rewritten(model) == (model, "")


def test_a_graph_without_a_mask_is_left() -> None:
    model = plain()
    model.graph.input.remove(next(value for value in model.graph.input if value.name == "attention_mask"))
    assert rewritten(model) == (model, "it has no input attention_mask, from which lengths are computed")


def nodes(model: ModelProto, kind: str, part: str = "") -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == kind and part in node.name]


def constant(model: ModelProto, name: str, data: bytes) -> None:
    """Another value for a constant."""
    [tensor] = [node.attribute[0].t for node in nodes(model, "Constant") if node.output[0] == name] or [
        tensor for tensor in model.graph.initializer if tensor.name == name
    ]
    assert len(tensor.raw_data) == len(data)
    tensor.raw_data = data


def with_window(model: ModelProto) -> None:
    """Positions farther away than 64 are compared too."""
    [greater] = nodes(model, "Greater")
    model.graph.initializer.add(name="window", data_type=7, raw_data=struct.pack("<q", 64))
    place = list(model.graph.node).index(greater)
    made = NodeProto(op_type="Sub", name="/far", input=[greater.input[1], "window"], output=["far"])
    greater.input[1] = "far"
    model.graph.node.insert(place, made)


def without_comparison(model: ModelProto) -> None:
    for node in [*nodes(model, "Greater"), *nodes(model, "Trilu")]:
        name, source = node.output[0], node.input[0]
        node.Clear()
        node.op_type, node.name = "Identity", "/all"
        node.input.append(source)
        node.output.append(name)


def heads_in_turn(model: ModelProto) -> None:
    """Heads 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    [unsqueeze] = [node for node in nodes(model, "Unsqueeze", "layers.1") if node.input[0] == "present.1.value"]
    constant(model, unsqueeze.input[1], struct.pack("<q", 1))


def part_of_a_head(model: ModelProto) -> None:
    for node in nodes(model, "Div", "layers.1/self_attn"):
        constant(model, node.input[1], struct.pack("<q", 4))


def other_half_first(model: ModelProto) -> None:
    for node in nodes(model, "Neg", "layers.0/self_attn"):
        [concat] = [item for item in nodes(model, "Concat") if node.output[0] in item.input]
        concat.input[0], concat.input[1] = concat.input[1], concat.input[0]


def sines_of_others(model: ModelProto) -> None:
    [sin] = nodes(model, "Sin")
    sin.op_type = "Cos"


def softmax_over_heads(model: ModelProto) -> None:
    [axis] = [item for item in nodes(model, "Softmax", "layers.1")[0].attribute if item.name == "axis"]
    axis.i = 1


def cast_keys(model: ModelProto) -> None:
    """The keys' cache of the first layer is cast, the values' is not."""
    [concat] = [node for node in nodes(model, "Concat") if "present.0.key" in node.output]
    cast = NodeProto(op_type="Cast", name="/cast", input=[concat.input[0]], output=["cast"])
    cast.attribute.add(name="to", type=2, i=TensorProto.FLOAT)
    concat.input[0] = "cast"
    model.graph.node.insert(0, cast)


def past_last(model: ModelProto) -> None:
    [concat] = [node for node in nodes(model, "Concat") if "present.0.key" in node.output]
    concat.input[0], concat.input[1] = concat.input[1], concat.input[0]


def older(model: ModelProto) -> None:
    for item in model.opset_import:
        item.version = 12


WAVES = [f"/model/layers.0/self_attn/Unsqueeze_{number}_output_0" for number in ("6", "7")]
"""The cosines and the sines of all layers."""


def doubled(model: ModelProto, waves: list[str], readers: str) -> None:
    """Let the nodes of that name take these cosines and sines times two."""
    for node in nodes(model, "Mul", readers):
        for place, name in enumerate(node.input):
            if name in waves:
                node.input[place] = name + "_twice"
    model.graph.initializer.add(name="two", data_type=1, raw_data=struct.pack("<f", 2.0))
    for name in waves:
        place = next(i for i, node in enumerate(model.graph.node) if name in node.output)
        twice = NodeProto(op_type="Mul", name=f"/twice{place}", input=[name, "two"], output=[name + "_twice"])
        model.graph.node.insert(place + 1, twice)


def rotated_in_one_layer(model: ModelProto) -> None:
    doubled(model, WAVES, "layers.1/self_attn")


def rotated_keys(model: ModelProto) -> None:
    doubled(model, WAVES, "layers.1/self_attn/Mul_2")
    doubled(model, WAVES, "layers.1/self_attn/Mul_3")


def larger_sines(model: ModelProto) -> None:
    doubled(model, WAVES[1:], "self_attn")


REFUSED: dict[str, tuple[Callable[[ModelProto], None], str]] = {
    "window": (with_window, "node /far (Sub): reads 64: the mask is not only causal"),
    "no comparison": (without_comparison, "compares no positions: the mask is not causal"),
    "heads in turn": (heads_in_turn, "no product reads it with its heads repeated"),
    "part of a head": (part_of_a_head, "is not a rotary embedding of whole heads"),
    "other half first": (other_half_first, "is not a rotary embedding of whole heads"),
    "sines of others": (sines_of_others, "(Cos): expected Sin"),
    "softmax over heads": (softmax_over_heads, "(Softmax): is not over the positions"),
    "cast keys": (cast_keys, "is cast to another type than the keys"),
    "past last": (past_last, "(Concat): does not append to past_key_values.0.key"),
    "older": (older, "its operator set is older than 13"),
    "keys by other angles": (rotated_keys, "multiplies q and k that are rotated by different angles"),
    "larger sines": (larger_sines, "takes sine and cosine of different angles"),
    "two angles": (rotated_in_one_layer, "its layers rotate by different angles"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_left_with_its_node(what: str) -> None:
    change, said = REFUSED[what]
    model = plain()
    change(model)
    found, reason = rewritten(model)
    assert found is model
    assert said in reason
    config: GenaiConfig = derived_config((OPTIMUM / "config.json").read_bytes(), None, model, "onnx/model.onnx")[0]
    _, about = decode_graph(model, config)
    assert said in about.growing
    assert about.obstacle(64) == about.growing
    assert not about.capturable


def test_caches_of_which_some_grow_are_refused() -> None:
    model = plain()
    config = derived_config((OPTIMUM / "config.json").read_bytes(), None, model, "onnx/model.onnx")[0]
    next(node for node in model.graph.node if "present.1.value" in node.output).op_type = "Where"
    with pytest.raises(
        UnsupportedModelError, match=r"present\.0\.key is longer than .*, and other caches have one size"
    ):
        graph.describe(model, config.decoder, 512)


WIDTH, WORDS = 32, 40


def whole(masked: bool, **attributes: Any) -> ModelProto:
    """One layer of MultiHeadAttention with 4 heads of 8, over caches that grow; causal by a mask or by itself."""
    rng = np.random.default_rng(7)
    node, floats, numbers = onnx.helper.make_node, TensorProto.FLOAT, TensorProto.INT64

    def weight(name: str, *shape: int) -> Any:
        return onnx.numpy_helper.from_array(rng.normal(0, 0.4, shape).astype(np.float32), name)

    def integer(name: str, *values: int) -> Any:
        return onnx.numpy_helper.from_array(np.array(values if len(values) != 1 else values[0], np.int64), name)

    constants = [weight("words", WORDS, WIDTH), weight("head", WIDTH, WORDS)]
    constants += [weight(part, WIDTH, WIDTH) for part in "qkv"]
    nodes = [node("Gather", ["words", "input_ids"], ["hidden"])]
    nodes += [node("MatMul", ["hidden", part], [f"{part}_made"]) for part in "qkv"]
    if masked:
        constants += [integer("zero", 0), integer("one", 1), integer("axes_q", 0, 1, 3), integer("axes_k", 0, 1, 2)]
        constants.append(onnx.numpy_helper.from_array(np.array(-1e4, np.float32), "far"))
        nodes += [
            node("Shape", ["input_ids"], ["ids_shape"]),
            node("Shape", ["attention_mask"], ["mask_shape"]),
            node("Gather", ["ids_shape", "one"], ["new"]),
            node("Gather", ["mask_shape", "one"], ["all"]),
            node("Sub", ["all", "new"], ["past"]),
            node("Range", ["past", "all", "one"], ["queries"]),
            node("Range", ["zero", "all", "one"], ["keys"]),
            node("Unsqueeze", ["queries", "axes_q"], ["rows"]),
            node("Unsqueeze", ["keys", "axes_k"], ["columns"]),
            node("Greater", ["columns", "rows"], ["later"]),
            node("Cast", ["later"], ["later_floats"], to=floats),
            node("Mul", ["later_floats", "far"], ["mask"]),
        ]
    inputs = ["q_made", "k_made", "v_made", "", "", "mask" if masked else "", *CACHES[0][:2]]
    given = {"num_heads": 4, "unidirectional": int(not masked), **attributes}
    nodes.append(node("MultiHeadAttention", inputs, ["out", *CACHES[0][2:]], domain="com.microsoft", **given))
    nodes.append(node("MatMul", ["out", "head"], ["logits"]))
    tensor = onnx.helper.make_tensor_value_info
    cache: list[str | int | None] = [1, 4, "length", 8]
    graph_ = onnx.helper.make_graph(
        nodes,
        "whole",
        [
            tensor("input_ids", numbers, [1, "new"]),
            tensor("attention_mask", numbers, [1, "all"]),
            *(tensor(name, floats, cache) for name in CACHES[0][:2]),
        ],
        [tensor("logits", floats, [1, "new", WORDS]), *(tensor(name, floats, cache) for name in CACHES[0][2:])],
        constants,
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return graph.parse(onnx.helper.make_model(graph_, opset_imports=opsets, ir_version=10).SerializeToString())


@pytest.mark.parametrize("masked", [True, False])
def test_multi_head_attention_over_growing_caches_is_rewritten(masked: bool) -> None:
    model = whole(masked)
    fixed, reason = graph.group_query_attention(model, CACHES[:1], (4, 4, 8), CONTEXT)
    assert reason == ""
    assert [node.op_type for node in nodes(fixed, "GroupQueryAttention")] == ["GroupQueryAttention"]
    assert not nodes(fixed, "Greater")
    growing, one_size = runner(model, caches=CACHES[:1], shape=(4, 8)), runner(fixed, 64, CACHES[:1], (4, 8))
    for ids in ([5, 6, 7, 8, 9], [11], [12], [30, 20, 31], [13]):
        np.testing.assert_allclose(one_size.run(ids), growing.run(ids), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda node: node.input.__setitem__(3, "q"), "has a bias or a mask of keys: q"),
        (lambda node: node.input.__setitem__(6, "later_floats"), "does not append to past_key_values.0.key"),
        (lambda node: node.input.__setitem__(5, ""), "is not causal"),
        (lambda node: setattr(node.attribute[0], "i", 8), "has 8 heads instead of 4 of each kind"),
    ],
)
def test_other_multi_head_attention_is_left(change: Callable[[Any], None], said: str) -> None:
    model = whole(masked=True)
    change(nodes(model, "MultiHeadAttention")[0])
    found, reason = graph.group_query_attention(model, CACHES[:1], (4, 4, 8), CONTEXT)
    assert found is model
    assert said in reason
