"""The description of a graph's needs; graphs that are refused or cannot be captured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capstan import graph
from capstan.device.run_inputs import require_fed
from capstan.errors import UnsupportedModelError
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.wiring import value_info
from capstan.model_files.genai_config import DecoderConfig
from capstan.model_files.genai_config_file import parse_genai_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/model.onnx"))


def load(name: str) -> tuple[ModelProto, DecoderConfig]:
    config = parse_genai_config((FIXTURES / name / "genai_config.json").read_bytes())
    return graph.parse((FIXTURES / name / "model.onnx").read_bytes()), config.decoder


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_is_described(name: str) -> None:
    model, decoder = load(name)
    about = graph.describe(model, decoder, 512)
    assert {info.name for info in about.inputs} == {"input_ids", "attention_mask", *(pair.past for pair in about.cache)}
    assert [(pair.layer, pair.kind) for pair in about.cache] == [(0, "key"), (0, "value"), (1, "key"), (1, "value")]
    heads, size = (1, 32) if name == "nano-phi4" else (2, 16)
    assert about.cache[2] == graph.CachePair(1, "key", "past_key_values.1.key", "present.1.key", heads, size)
    assert [pair.dims(3, 7) for pair in about.cache] == [(3, heads, 7, size)] * 4
    assert (about.num_layers, about.vocab_size) == (2, 512)
    assert (about.logits_dtype, about.cache_dtype, about.mask_dtype) == ("float32", "float32", "int64")
    assert not about.has_position_ids
    assert not about.needs_f16
    assert about.capturable is (name != "nano-shape")


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_became_inputs_are_not_run_time_inputs(name: str) -> None:
    model, decoder = load(name)
    rewritten, weights = graph.weights_to_inputs(model)
    names = [weight.name for weight in weights]
    assert graph.describe(rewritten, decoder, 512, names) == graph.describe(model, decoder, 512)


def test_float16_is_found_in_inputs_weights_and_casts() -> None:
    model, decoder = load("nano-llama")
    model.graph.node.append(NodeProto(op_type="Cast", name="c", input=["logits"], output=["h"]))
    model.graph.node[-1].attribute.add(name="to", i=TensorProto.FLOAT16)
    assert graph.describe(model, decoder).needs_f16
    model, decoder = load("nano-llama")
    model.graph.initializer.add(name="scale", data_type=TensorProto.FLOAT16, raw_data=b"\0\0")
    assert graph.describe(model, decoder).needs_f16
    model, decoder = load("nano-llama")
    for info in [*model.graph.input, *model.graph.output]:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    about = graph.describe(model, decoder)
    assert about.needs_f16
    assert (about.logits_dtype, about.cache_dtype) == ("float16", "float16")


def test_position_ids_are_fed_where_the_graph_has_them() -> None:
    model, decoder = load("nano-llama")
    model.graph.input.append(value_info("position_ids", TensorProto.INT64, ("batch_size", "sequence_length")))
    assert graph.describe(model, decoder).position_ids == "position_ids"


def test_no_token_ids_is_no_decoder() -> None:
    model, decoder = load("nano-llama")
    model.graph.input[0].name = "pixel_values"
    with pytest.raises(UnsupportedModelError, match=r"no input input_ids \(its inputs: pixel_values, attention"):
        graph.describe(model, decoder)


def test_state_that_is_no_cache_is_named() -> None:
    model, decoder = load("nano-llama")
    model.graph.output.append(value_info("conv_state.0", TensorProto.FLOAT, ("batch", 64, 3)))
    with pytest.raises(UnsupportedModelError, match=r"output conv_state.0 is a state .* past_conv_names and present_"):
        graph.describe(model, decoder)


def test_states_that_runs_overwrite_are_found_beside_the_caches_of_other_layers() -> None:
    model, decoder = load("families/lfm2")
    about = graph.describe(model, decoder)
    assert [(state.layer, state.kind, state.past, state.present) for state in about.states] == [
        (0, "conv", "past.0.conv", "present.0.conv"),
        (2, "conv", "past.2.conv", "present.2.conv"),
    ]
    assert [state.dims(3) for state in about.states] == [(3, 64, 2)] * 2
    assert [pair.layer for pair in about.cache] == [1, 1]
    assert about.capturable


def test_a_state_that_is_not_carried_on_or_has_no_fixed_size_is_named() -> None:
    model, decoder = load("families/lfm2")
    carried = next(info for info in model.graph.output if info.name == "present.2.conv")
    model.graph.output.remove(carried)
    with pytest.raises(UnsupportedModelError, match=r"no output present.2.conv; a state needs an input and an output"):
        graph.describe(model, decoder)
    model, decoder = load("families/lfm2")
    [state] = [info for info in model.graph.input if info.name == "past.2.conv"]
    state.type.tensor_type.shape.dim[2].dim_param = "length"
    with pytest.raises(UnsupportedModelError, match=r"past.2.conv is \[batch_size, 64, length\], expected fixed sizes"):
        graph.describe(model, decoder)
    model, decoder = load("families/lfm2")
    carried = next(info for info in model.graph.output if info.name == "present.2.conv")
    carried.type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(UnsupportedModelError, match=r"past.2.conv is float32 and present.2.conv float16"):
        graph.describe(model, decoder)


def test_a_layer_that_the_configuration_does_not_know_is_named() -> None:
    model, decoder = load("nano-llama")
    with pytest.raises(UnsupportedModelError, match=r"output present.1.key is not among the 1 layers"):
        graph.describe(model, replace(decoder, num_hidden_layers=1))
    with pytest.raises(UnsupportedModelError, match=r"model.onnx has no input past_key_values.2.key; .* 3 layers"):
        graph.describe(model, replace(decoder, num_hidden_layers=3))


def test_sizes_that_differ_from_the_configuration_are_named() -> None:
    model, decoder = load("nano-llama")
    with pytest.raises(
        UnsupportedModelError, match=r"past_key_values.0.key has 2 at dimension 1, .*num_key_value_heads is 4"
    ):
        graph.describe(model, replace(decoder, num_key_value_heads=4))
    with pytest.raises(UnsupportedModelError, match=r"output logits has 512 columns; .*vocab_size is 500"):
        graph.describe(model, decoder, 500)


def test_layers_may_have_caches_of_their_own_sizes() -> None:
    model, decoder = load("families/gemma4_text")
    about = graph.describe(model, decoder)
    assert [(pair.layer, pair.heads, pair.head_size) for pair in about.cache] == [
        *[(0, 2, 16)] * 2,
        *[(1, 1, 32)] * 2,
    ]
    [present] = [info for info in model.graph.output if info.name == "present.1.value"]
    present.type.tensor_type.shape.dim[3].dim_value = 16
    said = "cache present.1.value has 16 at dimension 3, but past_key_values.1.value has 32"
    with pytest.raises(UnsupportedModelError, match=said):
        graph.describe(model, decoder)


def test_sizes_that_the_graph_leaves_open_are_the_configurations() -> None:
    model, decoder = load("nano-llama")
    for info in [*model.graph.input, *model.graph.output]:
        for place in (1, 3) if info.name.startswith(("past", "present")) else ():
            info.type.tensor_type.shape.dim[place].dim_param = "open"
    about = graph.describe(model, replace(decoder, num_key_value_heads=1, head_size=32))
    assert {(pair.heads, pair.head_size) for pair in about.cache} == {(1, 32)}


def test_an_input_that_nobody_feeds_is_named() -> None:
    model, decoder = load("nano-llama")
    model.graph.input.append(value_info("token_type_ids", TensorProto.INT64, ("batch_size", "sequence_length")))
    model.graph.node[0].input.append("token_type_ids")
    about = graph.describe(model, decoder)
    assert [info.name for info in about.others] == ["token_type_ids"]
    with pytest.raises(UnsupportedModelError, match=r"an input token_type_ids \[batch_size, sequence_length\]"):
        require_fed(about)


def test_a_quantized_cache_is_refused() -> None:
    model, decoder = load("nano-llama")
    for info in [*model.graph.input, *model.graph.output]:
        if info.name.endswith("1.value"):
            info.type.tensor_type.elem_type = TensorProto.INT8
    with pytest.raises(UnsupportedModelError, match=r"cache past_key_values.1.value is int8, expected float32"):
        graph.describe(model, decoder)


def test_bfloat16_does_not_exist_on_webgpu() -> None:
    model, decoder = load("nano-llama")
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    with pytest.raises(UnsupportedModelError, match=r"logits is of ONNX element type 16, which WebGPU does not have"):
        graph.describe(model, decoder)
    model, _ = load("nano-llama")
    model.graph.initializer[0].data_type = TensorProto.BFLOAT16
    with pytest.raises(UnsupportedModelError, match=r"weight model.embed_tokens.weight: element type BFLOAT16"):
        graph.weights_to_inputs(model)


def test_the_node_that_takes_the_length_from_a_shape_is_named() -> None:
    model, _ = load("nano-shape")
    [found] = graph.uncapturable(model)
    assert (found.node, found.op_type) == ("/model/attn_mask_reformat/attn_mask_subgraph/Shape", "Shape")
    assert "takes the length from the size of attention_mask" in str(found)


def test_control_flow_and_operators_without_a_kernel_are_named() -> None:
    model, _ = load("nano-llama")
    model.graph.node.append(NodeProto(op_type="If", name="branch", input=["logits"], output=["a"]))
    model.graph.node.append(NodeProto(op_type="NonZero", name="find", input=["logits"], output=["b"]))
    model.graph.node.append(NodeProto(op_type="Shape", name="size", input=["logits"], output=["c"]))
    found = graph.uncapturable(model)
    assert [(item.node, item.op_type) for item in found] == [("branch", "If"), ("find", "NonZero")]
    assert str(found[0]).startswith("node branch (If): chooses its path")
    assert "no WebGPU kernel" in str(found[1])


def look_back(model: ModelProto, *sizes: int) -> None:
    """Give the graph's attentions windows of these sizes in turn."""
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node, size in zip(attentions, sizes, strict=True):
        [window] = (item for item in node.attribute if item.name == "local_window_size")
        window.i = size


@pytest.mark.parametrize(("sizes", "window"), [((-1, -1), 0), ((-1, 40), 40), ((64, -1), 64), ((64, 40), 40)])
def test_the_shortest_window_of_attention_is_found(sizes: tuple[int, int], window: int) -> None:
    model, _ = load("nano-llama")
    look_back(model, *sizes)
    assert graph.attention_window(model) == window


def test_runs_that_outgrow_the_window_of_attention_cannot_be_captured() -> None:
    model, decoder = load("nano-llama")
    assert graph.describe(model, decoder).obstacle(1 << 20) is None
    look_back(model, -1, 40)
    about = graph.describe(model, decoder)
    assert about.obstacle(40) is None
    found = about.obstacle(41)
    assert found is not None
    assert found.startswith("attention over past_key_values.1.key looks back 40 positions, ")
    assert about.obstacle(41, put_back=True) is None
    assert [each.key for each in about.left_out_within(41)] == ["past_key_values.1.key"]
    assert about.left_out_within(40) == []
    assert "max_length is 41; use at most 40" in found
    model, decoder = load("nano-shape")
    assert "takes the length from the size" in str(graph.describe(model, decoder).obstacle(1))


@pytest.mark.parametrize("kind", ["Concat", "MultiHeadAttention", "Attention"])
def test_a_cache_that_grows_is_refused(kind: str) -> None:
    model, decoder = load("nano-llama")
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == "present.1.value":
                node.output[place] = "new_value"
    inputs = ["past_key_values.1.value", "new_value"]
    model.graph.node.append(NodeProto(op_type=kind, name="/grow", input=inputs, output=["present.1.value"]))
    wanted = rf"^node /grow \({kind}\): present\.1\.value is longer than past_key_values\.1\.value after each run"
    with pytest.raises(UnsupportedModelError, match=wanted):
        graph.describe(model, decoder, 512)
