"""encoder_layers and encoder_run: the graphs whose layers our kernels compute, and the operations of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from capstan.errors import TapeError, UnsupportedModelError
from capstan.graph import parse
from capstan.graph.encoder_layers import EncoderLayers, LayerProduct, after_layers, before_layers, encoder_layers
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.spliced_embedding import without_mask
from capstan.tape import WorkgroupLimits, encoder_run
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.placement import Place

VISION = Path(__file__).parents[1] / "fixtures/vision"
H200 = WorkgroupLimits(32, 1024, 49152, matrices=(MatrixSize(16, 16, 16),))


def gemma() -> ModelProto:
    return parse((VISION / "nano-gemma3-vl/vision.onnx").read_bytes())


def idefics() -> ModelProto:
    return parse((VISION / "nano-idefics3/onnx/vision_encoder.onnx").read_bytes())


def node_of(model: ModelProto, kind: str, place: int = 0) -> NodeProto:
    return [node for node in model.graph.node if node.op_type == kind][place]


def test_a_layer_has_its_weights_by_name() -> None:
    found = encoder_layers(gemma())
    [layer] = found.layers
    prefix = "model.vision_tower.encoder.layers.0."
    assert found.enter == "/vision_tower/embeddings/Add_output_0"
    assert found.leave == "/vision_tower/encoder/layers.0/Add_1_output_0"
    assert layer.q == LayerProduct("onnx::MatMul_227", 16, 16, f"{prefix}self_attn.q_proj.bias")
    assert layer.up == LayerProduct("onnx::MatMul_243", 32, 16, f"{prefix}mlp.fc1.bias")
    assert (layer.head, layer.activation) == (8, "gelu")
    assert layer.scale == pytest.approx(8**-0.5)
    assert len(set(layer.names)) == 16
    assert layer.packed == ()


def test_a_mask_of_pixels_that_are_all_there_is_none() -> None:
    made = without_mask(idefics(), "pixel_attention_mask", "pixel_values")
    assert encoder_layers(made).layers[0].scale == pytest.approx(8**-0.5)


def more_layers(model: ModelProto) -> ModelProto:
    """The layer twice, by the same weights."""
    found = encoder_layers(model)
    inner = [node for node in model.graph.node if "/layers.0/" in node.name]
    made = {name for node in inner for name in node.output}
    last = next(place for place, node in enumerate(model.graph.node) if found.leave in node.output)
    for node in model.graph.node[last + 1 :]:
        node.input[:] = ["again" + name if name == found.leave else name for name in node.input]
    for node in reversed(inner):
        twin = NodeProto.FromString(node.SerializeToString())
        names = {name: "again" + name for name in made} | {found.enter: found.leave}
        twin.input[:], twin.output[:] = ([names.get(name, name) for name in part] for part in (node.input, node.output))
        model.graph.node.insert(last + 1, twin)
    return model


def test_layers_follow_one_another() -> None:
    found = encoder_layers(more_layers(gemma()))
    assert len(found.layers) == 2
    assert found.layers[0] == found.layers[1]
    assert found.leave.startswith("again")


def by_erf(model: ModelProto) -> None:
    """Gelu as one node."""
    first = node_of(model, "Tanh")
    end = next(node for node in model.graph.node if node.op_type == "MatMul" and "fc2" in node.name)
    start = next(node for node in model.graph.node if node.op_type == "Add" and "fc1" in node.name)
    made = helper.make_node("Gelu", [start.output[0]], ["gelu"])
    end.input[0] = "gelu"
    model.graph.node.insert(list(model.graph.node).index(first), NodeProto.FromString(made.SerializeToString()))


def in_int4(model: ModelProto) -> None:
    """A product by MatMulNBits."""
    node = next(node for node in model.graph.node if node.op_type == "MatMul" and "fc1" in node.name)
    node.op_type = "MatMulNBits"
    node.input.extend(["scales", "zeros"])
    sizes: dict[str, Any] = {"N": 32, "K": 16, "block_size": 16, "bits": 4}
    made = helper.make_node("MatMulNBits", [], [], **sizes)
    node.attribute.extend(NodeProto.FromString(made.SerializeToString()).attribute)


def test_activations_are_known_by_their_values_and_products_may_be_packed() -> None:
    model = gemma()
    by_erf(model)
    in_int4(model)
    [layer] = encoder_layers(model).layers
    assert layer.activation == "gelu by erf"
    assert replace(layer.up, bias="") == LayerProduct("onnx::MatMul_243", 32, 16, "", "scales", "zeros", 4, 16)
    assert layer.packed == ("onnx::MatMul_243", "zeros")


def tanh_apart(model: ModelProto) -> None:
    node_of(model, "Tanh").op_type = "Sigmoid"


def transposed(model: ModelProto) -> None:
    node_of(model, "Transpose", 3).attribute[0].ints[:] = [0, 2, 1, 3]


def shared_values(model: ModelProto) -> None:
    softmax = node_of(model, "Softmax")
    model.graph.node.append(NodeProto(op_type="Relu", input=[softmax.output[0]], output=["more"]))


def without_beta(model: ModelProto) -> None:
    del node_of(model, "LayerNormalization").input[2]


def no_residual(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.name.endswith("layers.0/Add"))
    node.input[0] = node.input[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (tanh_apart, "the activation of .* is none of gelu, gelu by erf, silu"),
        (transposed, "does not have exactly one product whose result is transposed like keys"),
        (shared_values, r"Softmax_output_0 is read by MatMul, Relu instead of one node"),
        (without_beta, "is not a LayerNorm of rows with a bias"),
        (no_residual, "is not added to"),
    ],
)
def test_layers_of_another_form_are_refused(change: Callable[[ModelProto], None], why: str) -> None:
    model = gemma()
    change(model)
    with pytest.raises(UnsupportedModelError, match=f"no layer of an encoder was recognised: .*{why}"):
        encoder_layers(model)


def test_a_mask_that_depends_on_an_input_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="the mask .* depends on pixel_attention_mask"):
        encoder_layers(idefics())


def test_a_graph_that_needs_a_layer_s_weights_afterwards_is_refused() -> None:
    model = gemma()
    found = encoder_layers(model)
    gamma = found.layers[0].before.gamma
    [features] = model.graph.output
    end = next(node for node in model.graph.node if features.name in node.output)
    end.output[0] = "before"
    model.graph.node.append(NodeProto(op_type="Add", input=["before", gamma], output=[features.name]))
    with pytest.raises(UnsupportedModelError, match=f"{gamma} is also read after the layers"):
        after_layers(model, encoder_layers(model), {}, TensorProto.FLOAT16, 256)


def test_parts_have_fixed_sizes_and_their_own_tensors_only() -> None:
    model = gemma()
    found = encoder_layers(model)
    sizes = {"pixel_values": [1, 3, 64, 64]}
    before, after = before_layers(model, found, sizes), after_layers(model, found, sizes, TensorProto.FLOAT, 256)
    dims = [[dim.dim_value for dim in part.graph.input[0].type.tensor_type.shape.dim] for part in (before, after)]
    assert dims == [[1, 3, 64, 64], [1, 256, 16]]
    assert [value.name for value in before.graph.output] == [found.enter]
    for part in (before, after):
        read = {name for node in part.graph.node for name in node.input}
        assert {tensor.name for tensor in part.graph.initializer} <= read
        assert not read & {*found.layers[0].names}


def gemma_4b() -> EncoderLayers:
    """27 layers of the shape of Gemma 3 4B's."""
    found = encoder_layers(gemma())
    sizes = {16: 1152, 32: 4304}

    def large(by: LayerProduct) -> LayerProduct:
        return replace(by, n=sizes[by.n], k=sizes[by.k])

    [layer] = found.layers
    parts: dict[str, Any] = {name: large(getattr(layer, name)) for name in ("q", "k", "v", "out", "up", "down")}
    return replace(found, layers=(replace(layer, head=72, **parts),) * 27)


def numbered(found: EncoderLayers) -> dict[str, int]:
    return {name: place for place, name in enumerate((found.enter, found.leave, *found.layers[0].names), 1)}


def test_a_layer_is_nine_operations_over_a_few_buffers() -> None:
    found = gemma_4b()
    ids = numbered(found)
    placement, step = encoder_run(found, ids, 4096, H200)
    assert len(placement.nodes) == 27 * 9 == len(step.kernels)
    assert len(step.scratch) == 6, "no value has a buffer of its own in each layer"
    assert placement.places[placement.nodes[0].reads[0]] == Place("recorded", ids[found.enter])
    assert placement.places[placement.nodes[-1].writes[0]] == Place("recorded", ids[found.leave])
    kinds = [kernel["shader"] for kernel in step.kernels[:9]]
    products = ["matmul_matrices"] * 3
    assert kinds == ["norm_rows", *products, "prefill_attention", products[0], "norm_rows", *products[:2]]
    attention = step.kernels[4]
    assert "lengths" not in attention["bindings"]
    assert {name: attention["constants"][name] for name in ("HEAD", "WIDTH", "K_PARTS")} == {
        "HEAD": 72,
        "WIDTH": 80,
        "K_PARTS": 5,
    }
    assert [kernel["constants"]["ACTIVATED"] for kernel in (step.kernels[7], step.kernels[8])] == [True, False]
    assert ["residual" in kernel["bindings"] for kernel in step.kernels[:9]] == [False] * 5 + [True, False, False, True]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"up": LayerProduct("W", 4300, 1152)}, "no kernel fits the product 1152 -> 4300 by W"),
        ({"head": 36}, "no kernel fits attention with heads of 36 elements in rows of 1152"),
        ({"head": 0}, "no kernel fits attention with heads of 0 elements in rows of 1152"),
        ({"head": 80}, "no kernel fits attention with heads of 80 elements in rows of 1152"),
    ],
)
def test_sizes_without_a_kernel_are_refused(changed: dict[str, Any], why: str) -> None:
    found = gemma_4b()
    layer = replace(found.layers[0], **changed)
    with pytest.raises(TapeError, match=why):
        encoder_run(replace(found, layers=(layer,)), {**numbered(found), "W": 90}, 4096, H200)
