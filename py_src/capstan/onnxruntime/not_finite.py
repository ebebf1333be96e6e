"""Finds the first value in a model that is NaN or infinite, for exports whose logits are all NaN."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .. import graph
from ..device.element_types import ELEMENT_TYPES, ONNX_NAMES, byte_count
from ..errors import PromptError, UnsupportedModelError
from ..graph.logits_to_keep import LOGITS_TO_KEEP
from ..graph.onnx_pb2 import ModelProto, NodeProto
from ..graph.pipeline import Made, Rewriting, rewritten
from ..graph.slices import GraphSlice, layer_of, layer_slices, slice_model
from ..host import Host
from ..model_files.config import GenaiConfig
from .host_array import HostArray, empty
from .ort_value import OrtValue
from .providers import CPU, WEBGPU
from .session import InferenceSession

__all__ = ["NotFinite", "find_not_finite"]

FLOATS = ("float32", "float16", "float64")
HALF_INFINITY = 0x7C00
LAYERS: dict[str, Made] = {
    "webgpu": "layers on webgpu",
    "wasm": "layers on wasm",
    "reference": "layers on reference",
}
"""The graph that runs on each device."""


@dataclass(frozen=True)
class NotFinite:
    """The first node, in the graph's order, that makes a NaN or plus infinity; else the one that makes the minus
    infinities of the logits. Those of masks mean nothing."""

    node: str
    """Its name."""
    op_type: str
    layer: int | None
    """The number in its name; None where there is none, as of the embedding and the output projection."""
    output: str
    """The tensor."""
    shape: tuple[int, ...]
    nan: int
    """How many of its values are NaN."""
    above: int
    """How many are plus infinity."""
    below: int
    """How many are minus infinity."""
    inputs: Mapping[str, int]
    """The node's inputs, weights too, that are not finite themselves, and how many of their values."""

    def __str__(self) -> str:
        where = "" if self.layer is None else f" of layer {self.layer}"
        read = ", ".join(f"{name} has {count}" for name, count in self.inputs.items())
        begin = f"; of what it reads, {read}" if read else "; all that it reads is finite"
        count = math.prod(self.shape)
        return (
            f"node {self.node} ({self.op_type}){where}: {self.nan} of the {count} values of {self.output} are NaN and "
            f"{self.above + self.below} infinite{begin}"
        )


async def find_not_finite(
    host: Host, folder: str, config: GenaiConfig, onnx: bytes, device: str, ids: Sequence[int]
) -> NotFinite | None:
    """Run a prompt through the graph a layer at a time, with all that its nodes compute read back; None if all of it is
    finite. A slice of the graph has its weights in itself, so that those of one layer are in memory at a time.

    Raises PromptError, UnsupportedModelError, and what InferenceSession raises.
    """
    if not ids:
        raise PromptError("the prompt is empty; give the token ids at whose end the logits are no numbers")
    parsed = graph.parse(onnx, config.decoder.filename)
    parsed = rewritten(parsed, LAYERS[device], Rewriting(config))
    values = feeds(parsed, config, ids)
    external = {entry.name: entry for entry in graph.external_entries(parsed)}
    slices = layer_slices(parsed)
    provider = WEBGPU if device == "webgpu" else CPU
    below: dict[str, NotFinite] = {}
    for index, part in enumerate(slices):
        data = {
            name: await host.read_weights(folder, config.decoder.folder + entry.location, entry.offset, entry.length)
            for name in part.weights
            if (entry := external.get(name)) is not None
        }
        made = values | await run_slice(slice_model(parsed, part, described(values), data), part, values, provider)
        weights = weights_of(parsed, part, data)
        for node in part.nodes:
            for found in not_finite_outputs(node, made, weights, config.decoder.num_hidden_layers):
                if found.nan or found.above:
                    return found
                below[found.output] = found
        needed = {name for later in slices[index + 1 :] for name in later.reads}
        values = {name: value for name, value in made.items() if name in needed}
    return origin(below, config.decoder.outputs.logits)


def origin(below: Mapping[str, NotFinite], logits: str) -> NotFinite | None:
    """The node whose result has the first minus infinities that reach the logits; those of masks do not reach them."""
    found = below.get(logits)
    while found is not None and (before := next((name for name in found.inputs if name in below), None)):
        found = below[before]
    return found


def feeds(parsed: ModelProto, config: GenaiConfig, ids: Sequence[int]) -> dict[str, HostArray]:
    """The inputs of a first run over the prompt. Raises UnsupportedModelError for one that Capstan does not feed."""
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
            raise UnsupportedModelError(f"input {name} is of an element type that cannot be passed")
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


def not_finite_outputs(
    node: NodeProto, values: Mapping[str, HostArray], weights: Mapping[str, HostArray], layers: int
) -> Iterator[NotFinite]:
    """The outputs of a node that are not finite."""
    for name in filter(None, node.output):
        value = values[name]
        nan, above, below = counts(value)
        if not nan + above + below:
            continue
        read = {each: values.get(each) or weights.get(each) for each in node.input}
        bad = {each: sum(counts(found)) for each, found in read.items() if found is not None}
        inputs = {each: count for each, count in bad.items() if count}
        layer = layer_of(node)
        # The norm behind the last layer is numbered as if it were in another one.
        within = layer if layer is not None and layer < layers else None
        yield NotFinite(node.name, node.op_type, within, name, tuple(value.dims), nan, above, below, inputs)


def weights_of(parsed: ModelProto, part: GraphSlice, data: Mapping[str, bytes]) -> dict[str, HostArray]:
    """The floating-point weights of a slice."""
    found = {}
    for tensor in parsed.graph.initializer:
        dtype = ONNX_NAMES.get(tensor.data_type)
        content = data.get(tensor.name) or tensor.raw_data
        if tensor.name in part.weights and dtype in FLOATS and len(content) == byte_count(dtype, tensor.dims):
            found[tensor.name] = HostArray(memoryview(content), dtype, tuple(tensor.dims))
    return found


def counts(value: HostArray) -> tuple[int, int, int]:
    """How many elements are NaN, plus and minus infinity; none of integers."""
    if value.dtype not in FLOATS or not value.data.nbytes:
        return 0, 0, 0
    if value.dtype == "float16":
        halves = Counter(value.data.cast("H"))
        nan = sum(count for bits, count in halves.items() if bits & 0x7FFF > HALF_INFINITY)
        return nan, halves[HALF_INFINITY], halves[HALF_INFINITY | 0x8000]
    numbers = value.data.cast("f" if value.dtype == "float32" else "d")
    # One pass in C: NaN and infinity show in the sum, which does not overflow for finite values.
    if value.dtype == "float32" and math.isfinite(sum(numbers)):
        return 0, 0, 0
    nan = sum(map(math.isnan, numbers))
    infinite = [number for number in numbers if math.isinf(number)]
    return nan, infinite.count(math.inf), infinite.count(-math.inf)
