"""Runs a model on a prompt layer by layer, and reads back all results of its nodes, including values that are no
outputs of the model.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from .. import graph
from ..device.element_types import ELEMENT_TYPES, ONNX_NAMES
from ..errors import UnsupportedModelError
from ..graph.graph_passes import Made, rewritten
from ..graph.logits_to_keep import LOGITS_TO_KEEP
from ..graph.onnx_pb2 import ModelProto
from ..graph.rewriting import Rewriting
from ..graph.slices import GraphSlice, layer_slices, slice_model
from ..graph.weight_inputs import require_whole
from ..host import Host
from ..model_files.genai_config import GenaiConfig
from .host_array import HostArray, empty
from .inference_session import InferenceSession
from .ort_value import OrtValue
from .providers import CPU, WEBGPU

__all__ = ["Layer", "computed_output", "layered_run"]

LAYERS: dict[str, Made] = {
    "webgpu": "layers on webgpu",
    "wasm": "layers on wasm",
    "reference": "layers on reference",
}
"""The graph that runs on each device."""


@dataclass(frozen=True)
class Layer:
    """Holds a slice of the graph after its run."""

    model: ModelProto
    """The whole graph."""
    part: GraphSlice
    values: Mapping[str, HostArray]
    """The inputs and the results of the slice."""
    data: Mapping[str, bytes]
    """Its weights in data files."""


async def layered_run(
    host: Host, folder: str, config: GenaiConfig, onnx: bytes, device: str, ids: Sequence[int]
) -> AsyncIterator[Layer]:
    """Run a prompt through the graph, slice by slice. A slice has the weights of one layer, so that only these are in
    memory at a time. Raises UnsupportedModelError, and the errors of InferenceSession.
    """
    parsed = graph.parse(onnx, config.decoder.filename)
    require_whole(parsed, "a run of one layer at a time")
    parsed = rewritten(parsed, LAYERS[device], Rewriting(config, run_length=len(ids)))
    values = feeds(parsed, config, ids)
    external = {entry.name: entry for entry in graph.external_entries(parsed)}
    slices = layer_slices(parsed)
    provider = WEBGPU if device == "webgpu" else CPU
    for index, part in enumerate(slices):
        data = {
            name: await host.read_weights(folder, config.decoder.folder + entry.location, entry.offset, entry.length)
            for name in part.weights
            if (entry := external.get(name)) is not None
        }
        made = values | await run_slice(slice_model(parsed, part, described(values), data), part, values, provider)
        yield Layer(parsed, part, made, data)
        needed = {name for later in slices[index + 1 :] for name in later.reads}
        values = {name: value for name, value in made.items() if name in needed}


async def computed_output(
    host: Host, folder: str, config: GenaiConfig, onnx: bytes, device: str, ids: Sequence[int], name: str
) -> HostArray:
    """An output of the graph after a run over a prompt. Raises the errors of `layered_run`."""
    async for layer in layered_run(host, folder, config, onnx, device, ids):
        if name in layer.values:
            return layer.values[name]
    raise UnsupportedModelError(f"output {name}: no node of the graph makes it")


def feeds(parsed: ModelProto, config: GenaiConfig, ids: Sequence[int]) -> dict[str, HostArray]:
    """The inputs of a first run over the prompt. Raises UnsupportedModelError for an input that Capstan does not
    feed.
    """
    decoder, length = config.decoder, len(ids)
    names = decoder.inputs
    about = graph.describe(
        parsed, decoder, config.vocab_size, [each.name for each in graph.lora_inputs(parsed, decoder)]
    )
    sizes = {pair.past: pair.dims(1, 0 if about.growing else length) for pair in about.cache}
    states = {state.past: state.dims(1) for state in about.states}
    weights = {tensor.name for tensor in parsed.graph.initializer}
    found = {}
    for value in parsed.graph.input:
        name, kind = value.name, value.type.tensor_type
        if name in weights:
            continue
        if kind.elem_type not in ONNX_NAMES:
            raise UnsupportedModelError(
                f"input {name} has an element type that cannot be passed: {kind.elem_type} of ONNX"
            )
        dtype, axes = ONNX_NAMES[kind.elem_type], len(kind.shape.dim)
        if name == names.input_ids:
            found[name] = integers(dtype, (1, length), ids)
        elif name == names.attention_mask:
            found[name] = integers(dtype, (1, length), [1] * length)
        elif name == names.position_ids:
            found[name] = integers(dtype, (*[3] * (axes - 2), 1, length), [*range(length)] * (3 if axes == 3 else 1))
        elif name == LOGITS_TO_KEEP:
            found[name] = integers(dtype, (1,) * axes, [1])
        elif name in sizes or name in states:
            found[name] = empty(dtype, sizes.get(name) or states[name])
        else:
            found[name] = empty(dtype, [dim.dim_value for dim in kind.shape.dim])
    return found


def integers(dtype: str, dims: Sequence[int], numbers: Sequence[int]) -> HostArray:
    return HostArray(memoryview(array(ELEMENT_TYPES[dtype].format, numbers)).cast("B"), dtype, tuple(dims))


def described(values: Mapping[str, HostArray]) -> dict[str, tuple[int, Sequence[int]]]:
    return {name: (ELEMENT_TYPES[value.dtype].onnx, value.dims) for name, value in values.items()}


async def run_slice(
    model: ModelProto, part: GraphSlice, values: Mapping[str, HostArray], provider: str
) -> dict[str, HostArray]:
    """The results of the slice's nodes, computed in Python's heap."""
    async with await InferenceSession.create(graph.serialize(model), providers=[provider]) as session:
        binding = session.io_binding()
        for name in part.reads:
            binding.bind_ortvalue_input(name, OrtValue.of_host(values[name]))
        for name in part.makes:
            binding.bind_output(name)
        await session.run_with_iobinding_async(binding)
        return {name: value.host() for name, value in zip(part.makes, binding.get_outputs(), strict=True)}
