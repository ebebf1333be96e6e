"""Finds the first node with NaN in a model whose weights have one."""

from __future__ import annotations

import asyncio
import math
import shutil
import struct
from pathlib import Path

import pytest

from capstan import Generator, GeneratorParams, LogitsError, Model, PromptError, graph
from capstan.graph.onnx_pb2 import ModelProto
from tests.browser.model_variants import LLAMA, add_node, rename_output, through_float16

FIXTURES = sorted(path.parent for path in LLAMA.parent.glob("*/genai_config.json"))
PROMPT = [5, 6, 7, 8, 9]
NAN = float("nan")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of nano-llama."""
    return Path(shutil.copytree(LLAMA, tmp_path / "nano"))


def spoil(folder: Path, weight: str, value: float, count: int = 1, first: int = 0) -> None:
    """Overwrite elements of a float32 weight."""
    path = folder / "model.onnx.data"
    entries = graph.external_entries(graph.parse((folder / "model.onnx").read_bytes()))
    [entry] = [entry for entry in entries if entry.name == weight]
    data = bytearray(path.read_bytes())
    start = entry.offset + 4 * first
    data[start : start + 4 * count] = struct.pack(f"={count}f", *[value] * count)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("weight", "layer", "op_type", "shape"),
    [
        ("model.layers.0.attn.qkv_proj.MatMul.weight_scales", 0, "MatMulNBits", (1, 5, 128)),
        ("model.layers.1.input_layernorm.weight", 1, "SkipSimplifiedLayerNormalization", (1, 5, 64)),
        ("model.layers.1.mlp.down_proj.MatMul.weight_scales", 1, "MatMulNBits", (1, 5, 64)),
        ("model.layers.2.final_norm_layernorm.weight", None, "SkipSimplifiedLayerNormalization", (1, 5, 64)),
    ],
)
def test_the_node_whose_weight_is_no_number_is_found(
    weight: str, layer: int | None, op_type: str, shape: tuple[int, ...], folder: Path
) -> None:
    spoil(folder, weight, NAN)
    found = asyncio.run(Model(str(folder)).find_not_finite(PROMPT))
    assert found is not None
    assert (found.layer, found.op_type, found.shape) == (layer, op_type, shape)
    assert (found.nan, found.above, found.below) == (len(PROMPT), 0, 0), "a column"
    assert found.inputs == {weight: 1}
    assert f"({op_type}){'' if layer is None else f' of layer {layer}'}: 5 of the " in str(found)


@pytest.mark.parametrize("scale", [1e30, -1e30])
def test_an_overflow_is_found_where_the_numbers_are_finite_before(scale: float, folder: Path) -> None:
    """One logit overflows to plus or minus infinity."""
    model = ModelProto()
    model.CopyFrom(graph.parse((folder / "model.onnx").read_bytes()))
    through_float16(model)
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    spoil(folder, "lm_head.MatMul.weight_scales", scale, 2, first=400)
    found = asyncio.run(Model(str(folder)).find_not_finite(PROMPT))
    assert found is not None
    assert (found.node, found.output, found.nan) == ("/added/Cast", "logits_half", 0)
    assert (found.above, found.below) == ((0, 1) if scale > 0 else (1, 0))
    assert str(found).endswith("; all its inputs are finite")


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name)
def test_a_sound_model_has_none(fixture: Path) -> None:
    assert asyncio.run(Model(str(fixture)).find_not_finite(PROMPT)) is None


def test_minus_infinity_that_does_not_reach_the_logits_is_a_mask(folder: Path) -> None:
    model = ModelProto()
    model.CopyFrom(graph.parse((folder / "model.onnx").read_bytes()))
    rename_output(model, "logits", "logits_before")
    model.graph.initializer.add(name="infinity", data_type=1, dims=[1], float_data=[math.inf])
    add_node(model, "Neg", ["infinity"], "mask")
    add_node(model, "Max", ["logits_before", "mask"], "logits")
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    assert asyncio.run(Model(str(folder)).find_not_finite(PROMPT)) is None


def test_the_error_of_the_logits_names_what_finds_it(folder: Path) -> None:
    spoil(folder, "model.layers.2.final_norm_layernorm.weight", NAN, 64)
    model = Model(str(folder))
    with Generator(model, GeneratorParams(model)) as generator:
        generator.append_tokens(PROMPT)
        with pytest.raises(LogitsError, match=r"`await model.find_not_finite\(ids\)` names the node where it begins$"):
            generator.generate_next_token()
        found = asyncio.run(model.find_not_finite(generator.get_sequence(0)))
    assert found is not None
    assert found.nan == len(PROMPT) * 64
    with pytest.raises(PromptError, match="the prompt is empty"):
        asyncio.run(model.find_not_finite([]))
