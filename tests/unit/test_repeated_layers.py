"""Decoders with more layers, made by repeating one: against the layers themselves, run one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benches.shapes.repeated_layers import repeat_layers

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAYERS = 5
BETWEEN = ["/model/layers.{}/post_attention_layernorm/output_3", "/model/layers.{}/mlp/down_proj/MatMul/output_0"]
"""The outputs of a layer that the next one takes."""
SHARED = [f"/model/attn_mask_reformat/attn_mask_subgraph/{name}/output_0" for name in ("Sub", "ReduceMax")]


@pytest.fixture(params=["nano-llama", "nano-qwen3"])
def source(request: pytest.FixtureRequest) -> Path:
    """A model of two layers; qwen3 has norms of q and k, and nodes between that all layers use."""
    return FIXTURES / str(request.param)


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Path:
    """The same with five."""
    repeat_layers(source, tmp_path / "made", LAYERS)
    return tmp_path / "made"


def weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    model = onnx.load(folder / "model.onnx")
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def part(folder: Path, inputs: list[str], outputs: list[str], turn: int = 0) -> Any:
    """A session of the part of the source's graph between these values, layer 1's rows turned by turn / LAYERS."""
    model = onnx.utils.Extractor(onnx.load(folder / "model.onnx")).extract_model(inputs, outputs)
    for tensor in model.graph.initializer:
        if "model.layers.1." in tensor.name and turn:
            array = numpy_helper.to_array(tensor)
            by = turn * array.shape[0] // LAYERS
            tensor.CopyFrom(numpy_helper.from_array(np.roll(array, -by, axis=0), tensor.name))
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def by_layers(folder: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """Logits and caches of the five layers, computed one layer after the other."""

    def run(inputs: list[str], outputs: list[str], values: list[Any], turn: int = 0) -> list[Any]:
        found: list[Any] = part(folder, inputs, outputs, turn).run(None, dict(zip(inputs, values, strict=True)))
        return found

    def cache(layer: int) -> list[str]:
        return [f"past_key_values.{layer}.{side}" for side in ("key", "value")]

    def present(layer: int) -> list[str]:
        return [f"present.{layer}.{side}" for side in ("key", "value")]

    first = ["input_ids", "attention_mask", *cache(0)]
    handed = [name.format(0) for name in BETWEEN]
    found = run(first, [*handed, *SHARED, *present(0)], [feeds[name] for name in first])
    state, shared = found[:2], found[2:4]
    results = dict(zip(present(0), found[4:], strict=True))
    after = [name.format(1) for name in BETWEEN]
    for layer in range(1, LAYERS):
        values = [*state, *shared, *(feeds[name] for name in cache(layer))]
        found = run([*handed, *SHARED, *cache(1)], [*after, *present(1)], values, layer - 1)
        state = found[:2]
        results |= dict(zip(present(layer), found[2:], strict=True))
    results["logits"] = run(after, ["logits"], state)[0]
    return results


def test_a_repeated_model_is_its_layers_one_after_the_other(source: Path, made: Path) -> None:
    session: Any = onnxruntime.InferenceSession(str(made / "model.onnx"), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds: dict[str, Any] = {"input_ids": np.array([[5, 6, 7, 8]]), "attention_mask": np.ones((1, 7), np.int64)}
    feeds |= {
        value.name: random.standard_normal((1, 2, 32, 16)).astype(np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    assert len(feeds) == 2 + 2 * LAYERS
    names = [value.name for value in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    expected = by_layers(source, feeds)
    assert set(results) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(results[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


def test_no_two_layers_have_the_same_bytes(made: Path) -> None:
    found = weights(made)
    products = [name for name in found if name.endswith(("weight_Q4", "weight_scales")) and ".layers." in name]
    kinds = {name.split(".", 3)[3] for name in products}
    assert len(products) == LAYERS * len(kinds) == LAYERS * 10
    assert len({found[name].tobytes() for name in products}) == len(products)


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 of 2 layers have attention, of 2 kinds: build every layer"):
        repeat_layers(FIXTURES / "nano-gemma3", tmp_path, LAYERS)


@pytest.mark.parametrize(("layers", "repeat"), [(1, 1), (5, 0), (5, 2)])
def test_only_a_layer_between_two_others_is_repeated(source: Path, tmp_path: Path, layers: int, repeat: int) -> None:
    with pytest.raises(ValueError, match=f"layer {repeat} of 2 cannot be repeated until there are {layers}"):
        repeat_layers(source, tmp_path, layers, repeat)
