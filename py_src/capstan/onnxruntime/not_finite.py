"""Finds the first NaN or infinite value in a model. It serves to debug exports whose logits are all NaN."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..device.element_types import ONNX_NAMES, byte_count
from ..errors import PromptError
from ..graph.onnx_pb2 import NodeProto
from ..graph.slices import layer_of
from ..host import Host
from ..model_files.genai_config import GenaiConfig
from .host_array import HostArray
from .layered_run import Layer, layered_run

__all__ = ["NotFinite", "find_not_finite"]

FLOATS = ("float32", "float16", "float64")
HALF_INFINITY = 0x7C00


@dataclass(frozen=True)
class NotFinite:
    """Describes the first node, in the graph's order, that makes a NaN or plus infinity. If no node does, it describes
    the node that makes the minus infinities of the logits; minus infinities of masks are ignored.
    """

    node: str
    """Its name."""
    op_type: str
    layer: int | None
    """The layer number in its name; None without one, as for the embedding and the output projection."""
    output: str
    """The output tensor."""
    shape: tuple[int, ...]
    nan: int
    """The number of its values that are NaN."""
    above: int
    """The number of plus infinities."""
    below: int
    """The number of minus infinities."""
    inputs: Mapping[str, int]
    """The node's inputs, including weights, that are not finite themselves, with the number of such values."""

    def __str__(self) -> str:
        where = "" if self.layer is None else f" of layer {self.layer}"
        read = ", ".join(f"{name} has {count}" for name, count in self.inputs.items())
        begin = f"; of its inputs, {read}" if read else "; all its inputs are finite"
        count = math.prod(self.shape)
        return (
            f"node {self.node} ({self.op_type}){where}: {self.nan} of the {count} values of {self.output} are NaN and "
            f"{self.above + self.below} infinite{begin}"
        )


async def find_not_finite(
    host: Host, folder: str, config: GenaiConfig, onnx: bytes, device: str, ids: Sequence[int]
) -> NotFinite | None:
    """Run a prompt through the graph layer by layer. Returns None if all results of its nodes are finite. Raises
    PromptError, and the errors of `layered_run`.
    """
    if not ids:
        raise PromptError("the prompt is empty; give the token ids after which the logits are NaN")
    below: dict[str, NotFinite] = {}
    async for layer in layered_run(host, folder, config, onnx, device, ids):
        weights = weights_of(layer)
        for node in layer.part.nodes:
            for found in not_finite_outputs(node, layer.values, weights, config.decoder.num_hidden_layers):
                if found.nan or found.above:
                    return found
                below[found.output] = found
    return origin(below, config.decoder.outputs.logits)


def origin(below: Mapping[str, NotFinite], logits: str) -> NotFinite | None:
    """The node that first makes the minus infinities of the logits. Minus infinities of masks do not reach the
    logits.
    """
    found = below.get(logits)
    while found is not None and (before := next((name for name in found.inputs if name in below), None)):
        found = below[before]
    return found


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
        # The norm after the last layer has the number of a further layer.
        within = layer if layer is not None and layer < layers else None
        yield NotFinite(node.name, node.op_type, within, name, tuple(value.dims), nan, above, below, inputs)


def weights_of(layer: Layer) -> dict[str, HostArray]:
    """The floating-point weights of a slice."""
    found = {}
    for tensor in layer.model.graph.initializer:
        dtype = ONNX_NAMES.get(tensor.data_type)
        content = layer.data.get(tensor.name) or tensor.raw_data
        if tensor.name in layer.part.weights and dtype in FLOATS and len(content) == byte_count(dtype, tensor.dims):
            found[tensor.name] = HostArray(memoryview(content), dtype, tuple(tensor.dims))
    return found


def counts(value: HostArray) -> tuple[int, int, int]:
    """The numbers of elements that are NaN, plus and minus infinity; zeros for integers."""
    if value.dtype not in FLOATS or not value.data.nbytes:
        return 0, 0, 0
    if value.dtype == "float16":
        halves = Counter(value.data.cast("H"))
        nan = sum(count for bits, count in halves.items() if bits & 0x7FFF > HALF_INFINITY)
        return nan, halves[HALF_INFINITY], halves[HALF_INFINITY | 0x8000]
    numbers = value.data.cast("f" if value.dtype == "float32" else "d")
    # One pass in C: NaN and infinity make the sum not finite, and finite values do not overflow it.
    if value.dtype == "float32" and math.isfinite(sum(numbers)):
        return 0, 0, 0
    nan = sum(map(math.isnan, numbers))
    infinite = [number for number in numbers if math.isinf(number)]
    return nan, infinite.count(math.inf), infinite.count(-math.inf)
