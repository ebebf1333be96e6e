"""The layers of a small vision graph by our kernels, one after another in the page, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from capstan.graph import parse, serialize
from capstan.graph.encoder_layers import EncoderLayers, after_layers, before_layers, encoder_layers
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from capstan.tape import WorkgroupLimits, encoder_run
from capstan.tape.kernel_plan import MatrixSize
from tests.browser.kernel_page import KernelPage

VISION = Path(__file__).parents[1] / "fixtures/vision/nano-gemma3-vl/vision.onnx"
LIMITS = WorkgroupLimits(4, 256, 16384, matrices=(MatrixSize(8, 8, 8),))
OFF = 0.01
"""The layers compute in float16, the graph in float32; without a layer's bias features are 0.5 apart."""


def ran(model: ModelProto, name: str, value: NDArray[Any]) -> NDArray[Any]:
    [found] = onnxruntime.InferenceSession(serialize(model), providers=["CPUExecutionProvider"]).run(
        None, {name: value}
    )
    return np.asarray(found)


def by_kernels(page: KernelPage, found: EncoderLayers, weights: dict[str, Any], entered: NDArray[Any]) -> NDArray[Any]:
    """The result of the layers in float16."""
    ids = {name: place for place, name in enumerate((found.enter, found.leave, *weights))}
    _, step = encoder_run(found, ids, entered.shape[-2], LIMITS)
    held = {("scratch", place): bytes(size) for place, size in enumerate(step.scratch)}
    held |= {("recorded", ids[name]): value.astype(np.float16).tobytes() for name, value in weights.items()}
    held["recorded", ids[found.enter]] = entered.astype(np.float16).tobytes()
    held["recorded", ids[found.leave]] = bytes(2 * entered.size)
    for kernel, (_, _, *workgroups) in zip(step.kernels, step.played, strict=True):
        bound = {name: tuple(place) for name, place in kernel["bindings"].items()}
        y = "normed" if "normed" in bound else "y"
        matrices = kernel["shader"] != "norm_rows"
        buffers = {
            name: held[place] if matrices else np.frombuffer(held[place], np.float16).astype(np.float32).tobytes()
            for name, place in bound.items()
        }
        about = {"read": y, "half": True, "lanes": LIMITS.lanes, "emulated": kernel["shader"] != "matmul_matrices"}
        data = page.run(kernel["shader"], kernel["constants"], buffers, workgroups, **about)
        held[bound[y]] = data if matrices else np.frombuffer(data, np.float32).astype(np.float16).tobytes()
    left = np.frombuffer(held["recorded", ids[found.leave]], np.float16)
    return left.astype(np.float32).reshape(entered.shape)


def test_layers_by_kernels_give_the_features_of_the_whole_graph(kernel_page: KernelPage) -> None:
    model = parse(VISION.read_bytes())
    found = encoder_layers(model)
    names = {name for layer in found.layers for name in layer.names}
    weights = {
        tensor.name: np.frombuffer(tensor.raw_data, np.float32)
        for tensor in model.graph.initializer
        if tensor.name in names
    }
    pixels = np.random.default_rng(5).uniform(-1, 1, (1, 3, 64, 64)).astype(np.float32)
    sizes = {"pixel_values": pixels.shape}
    before, after = before_layers(model, found, sizes), after_layers(model, found, sizes, TensorProto.FLOAT, 256)
    entered = ran(before, "pixel_values", pixels)
    features = ran(after, found.leave, by_kernels(kernel_page, found, weights, entered))
    wanted = ran(model, "pixel_values", pixels)
    assert features.shape == wanted.shape
    assert np.abs(features - wanted).max() < OFF * np.abs(wanted).max()
