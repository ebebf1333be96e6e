"""The graph passes, checked by running what they make with onnxruntime on the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan import graph
from capstan.errors import ModelFileError
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.model_files.genai_config import GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config
from tests.weight_bytes import bytes_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDERS = sorted(path.parent for path in FIXTURES.glob("*/model.onnx"))
NAMES = [folder.name for folder in FOLDERS]
CAPACITY = 128
CLOSE = 1e-5
"""onnxruntime chooses other CPU kernels for weights it does not know at load time, and for single rows."""
GEMMA_HEADS = {"past_key_values.0.key": 16, "past_key_values.1.key": 16}
"""Head sizes of nano-gemma2, by the inputs of the keys."""
TYPES = {"float32": np.float32, "uint8": np.uint8, "int64": np.int64}


@cache
def parsed(name: str) -> ModelProto:
    return graph.parse((FIXTURES / name / "model.onnx").read_bytes())


@cache
def config_of(name: str) -> GenaiConfig:
    return parse_genai_config((FIXTURES / name / "genai_config.json").read_bytes())


def copy(name: str) -> ModelProto:
    twin = ModelProto()
    twin.CopyFrom(parsed(name))
    return twin


def run(
    model: ModelProto,
    name: str,
    ids: list[int],
    valid: int,
    mask: int,
    lengths: graph.FedLengths | None = None,
    first: int | None = None,
    **weights: Any,
) -> dict[str, Any]:
    """All outputs for `ids`, the mask being `mask` long with `valid` ones; caches are of CAPACITY and empty."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # not in int8
    data = graph.serialize(model)
    if not weights:
        files = {
            entry.location: (FIXTURES / name / entry.location).read_bytes() for entry in graph.external_entries(model)
        }
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(content) for content in files.values()]
        )
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = dict(weights)
    if first is not None:
        feeds["first"] = np.array([first])
    about = graph.describe(parsed(name), config_of(name).decoder)
    for pair in about.cache:
        feeds[pair.past] = np.zeros(pair.dims(1, CAPACITY), np.float32)
    feeds["input_ids"] = np.array([ids], np.int64)
    if "attention_mask" in {each.name for each in session.get_inputs()}:
        feeds["attention_mask"] = (np.arange(mask) < valid).astype(np.int64)[None]
    if lengths is not None:
        feeds |= {lengths.seqlens_k: np.array([valid - 1], np.int32), lengths.total: np.array(valid, np.int32)}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def weights_of(manifest: list[graph.WeightEntry], name: str) -> dict[str, Any]:
    """The arrays that a manifest names."""
    arrays = {}
    for entry in manifest:
        data = bytes_of(entry, (FIXTURES / name / entry.location).read_bytes())
        arrays[entry.name] = np.frombuffer(data, TYPES[entry.dtype]).reshape(entry.dims)
    return arrays


IDS = [5, 6, 7, 8, 9, 100, 200]


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_covers_the_data_file_in_order(name: str) -> None:
    _, manifest = graph.weights_to_inputs(parsed(name))
    ends = 0
    for entry in manifest:
        assert entry.offset >= ends, "entries overlap or are out of order"
        ends = entry.end
    assert ends == (FIXTURES / name / "model.onnx.data").stat().st_size
    assert {entry.location for entry in manifest} == {"model.onnx.data"}


def external(model: ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def set_external(tensor: TensorProto, key: str, value: str) -> None:
    for item in tensor.external_data:
        if item.key == key:
            item.value = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "length",
            "255",
            "weight model.layers.0.input_layernorm.weight has 255 bytes in model.onnx.data, expected 256 for float32",
        ),
        ("offset", "-1", "offset is '-1' in model.onnx, expected a whole number of bytes"),
        ("offset", "1e3", "offset is '1e3' in model.onnx"),
        ("length", "", "length is '' in model.onnx"),
        ("location", "../secret", "external file is '../secret', expected one below the model's folder"),
        ("location", "/etc/passwd", "external file is '/etc/passwd'"),
        ("location", "https://elsewhere/x", "external file is 'https://elsewhere/x'"),
        ("location", "", "external file is ''"),
    ],
)
def test_an_external_entry_that_cannot_be_is_named(key: str, value: str, message: str) -> None:
    model = copy("nano-llama")
    set_external(external(model, "model.layers.0.input_layernorm.weight"), key, value)
    with pytest.raises(ModelFileError, match=message):
        graph.weights_to_inputs(model)


def test_a_shape_kept_in_the_data_file_stays_an_initializer() -> None:
    model = copy("nano-copies")
    tensor = external(model, "/copies/unit")
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "model.onnx.data"), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    assert [entry.name for entry in graph.constants_to_inline(model)] == ["/copies/unit"]
    with pytest.raises(
        ModelFileError, match=r"constant /copies/unit: none bytes of model.onnx.data were given, expected 24"
    ):
        graph.weights_to_inputs(model)
    result, manifest = graph.weights_to_inputs(model, {"/copies/unit": data})
    assert "/copies/unit" not in {entry.name for entry in manifest}
    wanted = run(parsed("nano-copies"), "nano-copies", IDS, len(IDS), len(IDS))["logits"]
    got = run(result, "nano-copies", IDS, len(IDS), len(IDS), **weights_of(manifest, "nano-copies"))["logits"]
    np.testing.assert_allclose(got, wanted, atol=CLOSE)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nano-copies"])
def test_last_token_logits_are_the_last_row(name: str) -> None:
    model, reason = graph.last_token_logits(parsed(name))
    assert reason == ""
    wanted = run(parsed(name), name, IDS, len(IDS), len(IDS))["logits"]
    got = run(model, name, IDS, len(IDS), len(IDS))["logits"]
    assert wanted.shape == (1, len(IDS), 512)
    assert got.shape == (1, 1, 512)
    np.testing.assert_allclose(got[0, 0], wanted[0, -1], atol=CLOSE)
    about = graph.describe(model, config_of(name).decoder)
    assert about.last_token_only
    assert not graph.describe(parsed(name), config_of(name).decoder).last_token_only


@pytest.mark.parametrize("name", ["nano-llama", "nano-gemma2", "nano-blocks"])
@pytest.mark.parametrize("kept", [1, 3, len(IDS)])
def test_an_input_says_from_which_position_on_logits_are_computed(name: str, kept: int) -> None:
    model, reason = graph.last_token_logits(parsed(name), first="first")
    assert reason == ""
    wanted = run(parsed(name), name, IDS, len(IDS), len(IDS))["logits"]
    got = run(model, name, IDS, len(IDS), len(IDS), first=-kept)["logits"]
    np.testing.assert_allclose(got, wanted[:, -kept:], atol=CLOSE)


def test_last_token_logits_leave_a_pruned_graph_as_it_is() -> None:
    for model in (parsed("nano-copies"), graph.last_token_logits(parsed("nano-granite"))[0]):
        result, reason = graph.last_token_logits(model)
        assert reason == "logits already holds only the last position"
        assert result == model


def projection(model: ModelProto) -> NodeProto:
    return next(node for node in model.graph.node if "logits" in node.output)


def rename_output(node: NodeProto, name: str) -> str:
    node.output[0] = name
    return name


def test_last_token_logits_walk_through_scaling_and_softcap() -> None:
    model = copy("nano-llama")
    raw = rename_output(projection(model), "raw")
    cap = model.graph.initializer.add(name="cap", data_type=TensorProto.FLOAT, raw_data=np.float32(3).tobytes())
    for op, inputs, output in (("Div", [raw, cap.name], "a"), ("Tanh", ["a"], "b"), ("Mul", ["b", cap.name], "logits")):
        model.graph.node.append(NodeProto(op_type=op, name=f"softcap/{op}", input=inputs, output=[output]))
    pruned, reason = graph.last_token_logits(model)
    assert reason == ""
    wanted = run(model, "nano-llama", IDS, len(IDS), len(IDS))["logits"]
    got = run(pruned, "nano-llama", IDS, len(IDS), len(IDS))["logits"]
    assert abs(wanted).max() <= 3
    np.testing.assert_allclose(got[0, 0], wanted[0, -1], atol=CLOSE)


def test_last_token_logits_give_a_reason_for_what_they_do_not_understand() -> None:
    model = copy("nano-llama")
    raw = rename_output(projection(model), "raw")
    model.graph.node.append(NodeProto(op_type="Softmax", name="odd", input=[raw], output=["logits"]))
    result, reason = graph.last_token_logits(model)
    assert reason == "node odd (Softmax) lies between the projection and logits"
    assert result == model
    model.graph.node[-1].op_type = "Add"
    model.graph.node[-1].input.append("/model/embed_tokens/Gather/output_0")
    assert graph.last_token_logits(model)[1] == "node odd (Add) joins 2 computed tensors"
    assert graph.last_token_logits(model, "scores")[1] == "no output named scores"
    model.graph.node[-1].input[:] = [raw, raw]
    model.graph.node.add(op_type="Identity", name="other", input=[raw], output=["other"])
    assert graph.last_token_logits(model)[1] == "raw has another reader, too"


def test_the_total_length_comes_from_the_masks_sum_with_a_static_mask() -> None:
    shape = parsed("nano-shape")
    model = graph.total_length_on_gpu(shape)
    wanted = run(shape, "nano-shape", IDS, len(IDS), len(IDS))
    got = run(model, "nano-shape", IDS, len(IDS), CAPACITY)
    for output, values in wanted.items():
        np.testing.assert_array_equal(got[output], values, err_msg=output)
    assert not any(node.op_type == "Shape" for node in model.graph.node)
    assert not graph.uncapturable(model)


def test_the_lengths_are_reduced_as_int32_as_there_is_no_int64_reduction_on_webgpu() -> None:
    model = graph.total_length_on_gpu(parsed("nano-shape"))
    casts = {node.output[0]: node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"}
    sums = [node for node in model.graph.node if node.op_type == "ReduceSum"]
    assert [casts.get(node.input[0]) for node in sums] == [TensorProto.INT32]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nano-shape"])
def test_the_total_length_pass_leaves_other_graphs_as_they_are(name: str) -> None:
    assert graph.total_length_on_gpu(parsed(name)) == parsed(name)


@pytest.mark.parametrize("name", NAMES)
def test_all_passes_together_compute_the_same(name: str) -> None:
    model, why = graph.quantized_products(graph.total_length_on_gpu(parsed(name)))
    assert why == ""
    model, _ = graph.last_token_logits(graph.joined_products(model))
    model, manifest = graph.weights_to_inputs(model)
    wanted = run(parsed(name), name, IDS, len(IDS), len(IDS))
    got = run(model, name, IDS, len(IDS), CAPACITY, **weights_of(manifest, name))
    np.testing.assert_allclose(got["logits"][0, -1], wanted["logits"][0, -1], atol=CLOSE)
    for pair in graph.describe(model, config_of(name).decoder, weights=[weight.name for weight in manifest]).cache:
        np.testing.assert_array_equal(got[pair.present], wanted[pair.present])


@pytest.mark.parametrize("name", NAMES)
def test_fed_lengths_compute_what_the_masks_sum_does(name: str) -> None:
    summed = graph.total_length_on_gpu(parsed(name))
    model, lengths, reason = graph.lengths_as_inputs(summed)
    assert lengths is not None
    assert reason == ""
    assert not {"ReduceSum", "ReduceMax"} & {node.op_type for node in model.graph.node}
    assert "attention_mask" not in {value.name for value in model.graph.input}
    # As many ids as positions, and fewer: a chunk after others.
    for valid in (len(IDS), len(IDS) + 20):
        wanted = run(summed, name, IDS, valid, CAPACITY)
        got = run(model, name, IDS, valid, CAPACITY, lengths)
        for output, values in wanted.items():
            np.testing.assert_array_equal(got[output], values, err_msg=f"{output} at {valid}")
    longer = run(model, name, IDS, len(IDS) + 21, CAPACITY, lengths)
    assert np.abs(longer["logits"] - got["logits"]).max() > CLOSE, "the fed lengths change nothing"


@pytest.mark.parametrize("fed", [False, True], ids=["summed", "fed"])
def test_soft_caps_in_other_operators_compute_the_same(fed: bool) -> None:
    name = "nano-gemma2"
    lengths = None
    model = wanted_of = parsed(name)
    if fed:
        model, lengths, _ = graph.lengths_as_inputs(model)
        wanted_of = model
    model = graph.soft_caps_apart(model, GEMMA_HEADS)
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    assert not any(item.name == "softcap" for node in attentions for item in node.attribute)
    for valid in (len(IDS), len(IDS) + 40):
        wanted = run(wanted_of, name, IDS, valid, CAPACITY, lengths)
        got = run(model, name, IDS, valid, CAPACITY, lengths)
        assert got.keys() == wanted.keys()
        for output, values in wanted.items():
            np.testing.assert_allclose(got[output], values, atol=CLOSE, err_msg=f"{output} at {valid}")
    uncapped = copy(name)
    for node in uncapped.graph.node:
        for item in node.attribute:
            if item.name == "softcap":
                item.f = 0.0
    without = run(uncapped, name, IDS, len(IDS) + 40, CAPACITY)
    assert np.abs(without["logits"] - got["logits"]).max() > CLOSE, "the soft cap changes nothing"


def test_the_scores_of_soft_caps_are_in_the_estimate_of_activations() -> None:
    model = graph.soft_caps_apart(parsed("nano-gemma2"), GEMMA_HEADS)
    found = graph.activations(model)
    # Heads, tokens, positions: two tensors of them are alive at once.
    assert found.peak(1, 64, 4096) >= 2 * 4 * (4 * 64 * 4096)
    assert graph.activations(parsed("nano-gemma2")).peak(1, 64, 4096) < 4 * (4 * 64 * 4096)


def test_fed_lengths_leave_the_mask_to_others_that_read_it() -> None:
    model = copy("nano-llama")
    model.graph.node.append(NodeProto(op_type="Identity", name="kept", input=["attention_mask"], output=["copy"]))
    model.graph.output.add(name="copy").type.tensor_type.elem_type = TensorProto.INT64
    model, lengths, _ = graph.lengths_as_inputs(model)
    assert lengths is not None
    found = run(model, "nano-llama", IDS, len(IDS), CAPACITY, lengths)
    assert found["copy"].sum() == len(IDS)


def length_nodes(model: ModelProto) -> dict[str, NodeProto]:
    return {node.op_type: node for node in model.graph.node if "attn_mask_subgraph" in node.name}


def other_lengths(kind: str) -> ModelProto:
    """nano-llama with lengths that are no sums of the mask."""
    model = copy("nano-llama")
    nodes = length_nodes(model)
    attention = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][-1]
    if kind == "another constant":
        two = model.graph.initializer.add(name="two", data_type=TensorProto.INT32, raw_data=np.int32(2).tobytes())
        two.dims.append(1)
        nodes["Sub"].input[1] = two.name
    elif kind == "the sum itself":
        attention.input[5] = nodes["ReduceSum"].output[0]
    elif kind == "kept dimensions":
        nodes["ReduceMax"].attribute[0].i = 1
    elif kind == "another reduction":
        nodes["ReduceMax"].op_type = "ReduceMin"
    elif kind == "an input":
        attention.input[6] = "input_ids"
    elif kind == "another input's sum":
        nodes["Cast"].input[0] = "input_ids"
    elif kind == "no attention":
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.op_type = "MultiHeadAttention"
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("another constant", "seqlens_k of node /model/layers.0/attn/GroupQueryAttention is not the sum of"),
        ("the sum itself", "seqlens_k of node /model/layers.1/attn/GroupQueryAttention is not the sum of"),
        ("kept dimensions", "total_sequence_length of node /model/layers.0/attn/GroupQueryAttention is not a sum of"),
        ("another reduction", "total_sequence_length of node /model/layers.0/attn/GroupQueryAttention is not a sum of"),
        ("an input", "total_sequence_length of node /model/layers.1/attn/GroupQueryAttention is not a sum of"),
        ("another input's sum", "seqlens_k of node /model/layers.0/attn/GroupQueryAttention is not the sum of"),
        ("no attention", "no GroupQueryAttention takes a length"),
    ],
)
def test_lengths_that_are_no_sums_of_the_mask_are_not_fed(kind: str, reason: str) -> None:
    model = other_lengths(kind)
    result, lengths, found = graph.lengths_as_inputs(model)
    assert found.startswith(reason)
    assert lengths is None
    assert result == model


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "model.onnx: its 0 bytes have no nodes or no outputs"),
        (b"\x00" * 64, "model.onnx: its 64 bytes are not an ONNX model"),
        (b"<!doctype html><title>Not Found</title>", "model.onnx: its 39 bytes are not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "model.onnx is a Git LFS pointer of 46 bytes"),
        (
            (FIXTURES / "nano-llama" / "model.onnx").read_bytes()[:5000],
            "model.onnx: its 5000 bytes are not an ONNX model",
        ),
    ],
)
def test_what_is_not_a_model_file_is_told(data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        graph.parse(data)


@pytest.mark.parametrize("name", ["nano-llama", "nano-granite"])
def test_logits_that_are_cut_are_the_last_row(name: str) -> None:
    wanted = run(parsed(name), name, IDS, len(IDS), len(IDS))["logits"]
    got = run(graph.logits_cut(parsed(name)), name, IDS, len(IDS), len(IDS))["logits"]
    assert got.shape == (1, 1, 512)
    np.testing.assert_allclose(got[0, 0], wanted[0, -1], atol=CLOSE)


@pytest.mark.parametrize("name", ["nano-llama", "nano-gemma2", "nano-blocks"])
def test_every_position_undoes_the_cut_to_the_last_one(name: str) -> None:
    wanted = run(parsed(name), name, IDS, len(IDS), len(IDS))["logits"]
    for cut in (graph.last_token_logits(parsed(name))[0], graph.logits_cut(parsed(name))):
        assert run(cut, name, IDS, len(IDS), len(IDS))["logits"].shape == (1, 1, 512)
        got = run(graph.every_position(cut), name, IDS, len(IDS), len(IDS))["logits"]
        assert got.shape == (1, len(IDS), 512)
        np.testing.assert_allclose(got, wanted, atol=CLOSE)
    assert graph.every_position(parsed(name)) == parsed(name), "there was nothing to undo"


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.timeout(20)
def test_nodes_that_read_one_another_in_a_circle_are_refused(length: int) -> None:
    model = copy("nano-llama")
    [node] = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][:1]
    names = [f"circle.{number}" for number in range(length)]
    for number, name in enumerate(names):
        model.graph.node.append(
            NodeProto(op_type="Cast", input=[names[number - 1]], output=[name], name=f"cast {name}")
        )
    node.input[5] = names[0]
    with pytest.raises(ModelFileError, match=r"the node 'cast circle\.\d' \('Cast'\) reads its own output"):
        graph.parse(model.SerializeToString())


def test_nodes_may_come_in_any_order() -> None:
    model = copy("nano-llama")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert len(graph.parse(model.SerializeToString()).graph.node) == len(nodes)
