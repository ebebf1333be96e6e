"""Graphs that ask for what a device does not compute, choose rotary factors by a length, or keep some logits."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import capstan
from capstan import (
    ModelFileError,
    UncomputedError,
    UnsupportedModelError,
    graph,
)
from capstan.device.run_inputs import require_fed
from capstan.graph.graph_passes import rewritten
from capstan.graph.onnx_pb2 import AttributeProto, ModelProto, TensorProto
from capstan.graph.rewriting import Rewriting
from capstan.graph.uncomputed import uncomputed
from capstan.graph.wiring import int64_tensor
from capstan.model_files.genai_config_file import parse_genai_config
from tests.attention_nodes import AttentionNode
from tests.browser.model_variants import keeping_logits, norms_in_attention, soft_capped
from tests.expert_nodes import ExpertNode

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
HEAD_SIZES = {"past_key_values.0.key": 16, "past_key_values.1.key": 16}


def parsed(folder: Path) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(graph.parse((folder / "model.onnx").read_bytes()))
    return model


def attentions(model: ModelProto) -> list[str]:
    return [node.name for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def test_graphs_with_experts_have_runs_of_one_token_on_webgpu() -> None:
    assert graph.one_row_only(parsed(LLAMA)) == ""
    assert graph.one_row_only(parsed(FIXTURES / "families" / "gptoss")) == (
        "node /model/layers.0/moe/QMoE (QMoE): onnxruntime-web loses rows of runs of several tokens"
    )


def test_experts_in_blocks_that_are_not_computed_are_refused_with_the_sizes() -> None:
    model = graph.parse(ExpertNode(1, inner=128, block=64).model())
    with pytest.raises(UncomputedError) as refused:
        graph.require_computed(model, "webgpu")
    assert str(refused.value) == (
        "node experts (QMoE): onnxruntime-web refuses on webgpu block_size=64 for rows of 64 and 128 elements "
        "(a qmoe_block_size below 64 is computed) (and 1 more); export the model without it"
    )
    with pytest.raises(
        UncomputedError, match=r"ignores on webgpu that rows of 32 .* \(block_size=64\); use device='wasm'"
    ):
        graph.require_computed(graph.parse(ExpertNode(1, block=64).model()), "webgpu")


def test_experts_whose_activations_would_be_rounded_to_int8_are_refused_in_float32_alone() -> None:
    for width, inner in ((128, 64), (192, 128)):
        model = graph.parse(ExpertNode(1, width=width, inner=inner, block=64).model())
        with pytest.raises(UncomputedError) as refused:
            graph.require_computed(model, "webgpu")
        assert str(refused.value) == (
            "node experts (QMoE): onnxruntime-web ignores on webgpu float32 activations, which it rounds to "
            "int8 in rows of 128 elements in blocks of 64 (rows that are not a multiple of 128, blocks of 16 and "
            "float16 are computed exactly); use device='wasm' for it"
        )
        graph.require_computed(model, "wasm")
        for scales in (tensor for tensor in model.graph.initializer if tensor.name.startswith("scales")):
            scales.data_type = TensorProto.FLOAT16
        graph.require_computed(model, "webgpu")
    for width, inner, block in ((128, 64, 16), (64, 64, 64), (192, 64, 64)):
        model = graph.parse(ExpertNode(1, width=width, inner=inner, block=block).model())
        graph.require_computed(model, "webgpu")


def test_attention_over_windows_has_caches_of_all_positions() -> None:
    model = parsed(LLAMA)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.add(name="sliding_window_cache", type=AttributeProto.INT, i=1)
    assert uncomputed(model, "webgpu")
    assert graph.whole_caches(model) == parsed(LLAMA)
    config = parse_genai_config((LLAMA / "genai_config.json").read_bytes())
    for device in ("webgpu", "wasm"):
        rewritten(model, device, Rewriting(config))


@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_fixtures_ask_for_nothing_that_is_not_computed(device: str) -> None:
    for folder in FIXTURES.glob("**/model.onnx"):
        model = parsed(folder.parent)
        if device == "webgpu":
            model = graph.soft_caps_apart(graph.whole_caches(model), HEAD_SIZES)
        assert uncomputed(model, device) == [], folder


def attention_of(model: ModelProto, change: dict[str, int] | None = None, inputs: tuple[str, ...] = ()) -> None:
    """Give the attentions further attributes, and inputs behind the ninth."""
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            for name, value in (change or {}).items():
                node.attribute.add(name=name, type=AttributeProto.INT, i=value)
            if inputs:
                node.input.extend([""] * (10 - len(node.input)))
                del node.input[10:]
                node.input.extend(inputs)


@pytest.mark.parametrize(
    ("change", "inputs"),
    [
        ({"smooth_softmax": 1}, ()),
        ({"causal": 0}, ()),
        ({"something_new": 0}, ()),
        ({}, ("bias",)),
        ({}, ("", "sink")),
    ],
    ids=["smooth", "not causal", "unknown", "bias", "sink"],
)
def test_soft_caps_with_what_other_operators_would_lose_stay_as_they_are(
    change: dict[str, int], inputs: tuple[str, ...]
) -> None:
    model = parsed(FIXTURES / "nano-gemma2")
    attention_of(model, change, inputs)
    assert graph.soft_caps_apart(model, HEAD_SIZES) == model
    assert graph.soft_caps_apart(parsed(LLAMA), HEAD_SIZES) == parsed(LLAMA), "there is no soft cap"
    rotated_in_part = parsed(FIXTURES / "nano-gemma2")
    assert graph.soft_caps_apart(rotated_in_part, dict.fromkeys(HEAD_SIZES, 32)) == rotated_in_part
    attention_of(rotated_in_part, {"smooth_softmax": 0})
    assert graph.soft_caps_apart(rotated_in_part, HEAD_SIZES) != rotated_in_part


@pytest.mark.parametrize("inputs", [("cos_cache",), ("head_sink",)], ids=["without sinks", "sinks too"])
def test_smooth_softmax_is_a_sink_of_zero(inputs: tuple[str, ...]) -> None:
    node = AttentionNode(5, 7, {"smooth_softmax": 1, "do_rotary": int("cos_cache" in inputs)}, inputs)
    changed = graph.smooth_softmax_as_sinks(graph.parse(node.model()))
    (attention,) = (each for each in changed.graph.node if each.op_type == "GroupQueryAttention")
    assert len(attention.input) == 12
    assert attention.input[11]
    assert "smooth_softmax" not in [item.name for item in attention.attribute]
    tensors = node.tensors()
    feeds = {name: tensors[name] for name in ("query", "key", "value")}
    wanted, found = (
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
        for data in (node.model(), graph.serialize(changed))
    )
    for each, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(each, other)


def test_attention_without_smooth_softmax_has_no_sinks() -> None:
    model = parsed(LLAMA)
    assert graph.smooth_softmax_as_sinks(model) == model
    attention_of(model, {"smooth_softmax": 0})
    assert graph.smooth_softmax_as_sinks(model) == model
    both = parsed(LLAMA)
    attention_of(both, {"smooth_softmax": 1})
    both = graph.smooth_softmax_as_sinks(both)
    assert len({node.input[11] for node in both.graph.node if node.op_type == "GroupQueryAttention"}) == 1


def test_a_soft_cap_is_what_webgpu_ignores_unless_it_is_zero() -> None:
    model = parsed(LLAMA)
    soft_capped(0.0)(model)
    graph.require_computed(model, "webgpu")
    soft_capped(30.0)(model)
    graph.require_computed(model, "wasm")
    assert [found.node for found in uncomputed(model, "webgpu")] == attentions(model)
    with pytest.raises(UncomputedError, match=r"on webgpu softcap=30 \(and 1 more\); use device='wasm' for it$"):
        graph.require_computed(model, "webgpu")


def test_what_no_device_computes_has_another_remedy() -> None:
    model = parsed(FIXTURES / "nano-qwen3")
    norms_in_attention(model)
    graph.require_computed(model, "webgpu")
    with pytest.raises(UncomputedError, match=r"refuses on wasm its input .* use device='webgpu' for it$"):
        graph.require_computed(model, "wasm")
    soft_capped(30.0)(model)
    for device in ("webgpu", "wasm"):
        with pytest.raises(UncomputedError, match=r"export the model without it$"):
            graph.require_computed(model, device)


def test_positions_are_ignored_unless_they_are_the_ones_that_are_fed() -> None:
    model = parsed(LLAMA)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend([""] * (9 - len(node.input)))
            del node.input[9:]
            node.input.append("positions")
    graph.require_computed(model, "webgpu", position_ids="positions")
    with pytest.raises(UncomputedError, match=r"ignores on webgpu its input positions \(position_ids\)"):
        graph.require_computed(model, "webgpu")


def test_the_number_of_logits_to_keep_is_that_of_all_without_trust_in_its_effect() -> None:
    model = parsed(LLAMA)
    assert graph.logits_of_all(model) == model
    keeping_logits(model)
    model.graph.initializer.append(int64_tensor("num_logits_to_keep", [2], scalar=True))
    kept = graph.logits_of_all(model)
    assert "num_logits_to_keep" not in {value.name for value in kept.graph.input}
    [constant] = [tensor for tensor in kept.graph.initializer if tensor.name == "num_logits_to_keep"]
    assert constant == int64_tensor("num_logits_to_keep", [0], scalar=True)
    config = parse_genai_config((LLAMA / "genai_config.json").read_bytes())
    assert not graph.describe(kept, config.decoder).last_token_only
    del model.graph.initializer[-1]
    with pytest.raises(UnsupportedModelError, match=r"input num_logits_to_keep \[\] that Capstan cannot feed"):
        require_fed(graph.describe(model, config.decoder))


def test_a_number_of_logits_of_another_kind_is_fed_by_nobody() -> None:
    model = parsed(LLAMA)
    keeping_logits(model)
    [value] = [value for value in model.graph.input if value.name == "num_logits_to_keep"]
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    assert graph.logits_of_all(model) == model


def test_on_cpython_the_number_of_logits_is_fed(tmp_path: Path) -> None:
    folder = tmp_path / "keeping"
    shutil.copytree(LLAMA, folder)
    model = parsed(LLAMA)
    keeping_logits(model)
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    picked: list[list[int]] = []
    for place in (folder, LLAMA):
        opened = asyncio.run(capstan.Model.load(place, device="reference"))
        with capstan.Generator(opened, capstan.GeneratorParams(opened)) as generator:
            generator.append_tokens([5, 6, 7, 8, 9])
            picked.append([])
            for _ in range(8):
                generator.generate_next_token()
                picked[-1].append(int(generator.get_next_tokens()[0]))
    assert picked[0] == picked[1]


def test_attributes_of_other_types_are_left_alone() -> None:
    model = parsed(LLAMA)
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.attribute.add(name="k_quant_type", type=AttributeProto.STRING, s=b"NONE")
    assert uncomputed(model, "webgpu") == []


@pytest.mark.parametrize(
    "name", [b"batch_size", b"input_ids", b"GroupQueryAttention", b"accuracy_level", b"model.onnx.data"]
)
def test_a_name_that_is_not_utf_8_is_refused_when_the_file_is_parsed(name: bytes) -> None:
    data = (LLAMA / "model.onnx").read_bytes()
    assert name in data
    with pytest.raises(ModelFileError, match=r"the graph has the name b'.*\\xff.*', which is not UTF-8"):
        graph.parse(data.replace(name, name[:-1] + b"\xff"))
