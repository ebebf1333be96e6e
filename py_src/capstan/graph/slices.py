"""Cuts a graph into parts that run one after another; all results of a part's nodes are outputs of the part."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .onnx_pb2 import ModelProto, NodeProto, TensorProto, ValueInfoProto
from .wiring import captured_names, subgraphs, value_info

__all__ = ["GraphSlice", "layer_of", "layer_slices", "slice_model"]

LAYER = re.compile(r"(?:^|[/._])(?:layers?|h|blocks?)[._](\d+)(?:$|[/._])")
"""Finds the layer's number in a node's name, in the forms that exporters write."""
MOST_NODES = 64
"""The most nodes of a slice, so that graphs without layers in their names have several slices, too."""


@dataclass(frozen=True)
class GraphSlice:
    """Describes consecutive nodes. `reads` are tensors from other nodes and the graph's inputs, `weights` are the
    initializers, and `makes` are the results of the nodes.
    """

    nodes: tuple[NodeProto, ...]
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    makes: tuple[str, ...]


def layer_of(node: NodeProto) -> int | None:
    """The layer in the names of a node, or of its outputs and inputs; None without one."""
    for name in (node.name, *node.output, *node.input):
        found = LAYER.search(name)
        if found:
            return int(found[1])
    return None


def layer_slices(model: ModelProto) -> list[GraphSlice]:
    """The graph's nodes in order, with those of a layer together."""
    parts: list[list[NodeProto]] = []
    last: int | None = None
    for node in model.graph.node:
        layer = layer_of(node)
        if not parts or layer != last or len(parts[-1]) == MOST_NODES:
            parts.append([])
        parts[-1].append(node)
        last = layer
    weights = {tensor.name for tensor in model.graph.initializer}
    return [slice_of(nodes, weights) for nodes in parts]


def slice_of(nodes: Sequence[NodeProto], weights: Collection[str]) -> GraphSlice:
    made = tuple(name for node in nodes for name in node.output if name)
    inner = {name for node in nodes for name in inner_names(node)}
    read = dict.fromkeys(name for node in nodes for name in (*node.input, *captured_names(node)) if name)
    outside = [name for name in read if name not in made and name not in inner]
    return GraphSlice(
        tuple(nodes),
        tuple(name for name in outside if name not in weights),
        tuple(name for name in outside if name in weights),
        made,
    )


def inner_names(node: NodeProto) -> Iterable[str]:
    """The names that are defined inside the subgraphs of a node."""
    for subgraph in subgraphs(node):
        yield from (value.name for value in subgraph.input)
        yield from (tensor.name for tensor in subgraph.initializer)
        for inner in subgraph.node:
            yield from inner.output
            yield from inner_names(inner)


def slice_model(
    model: ModelProto, part: GraphSlice, given: Mapping[str, tuple[int, Sequence[int]]], data: Mapping[str, bytes]
) -> ModelProto:
    """The model of a slice; `given` has element type and dimensions of its inputs, `data` the bytes of external
    weights."""
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    graph = result.graph
    graph.name = "slice"
    graph.node.extend(part.nodes)
    for name in part.reads:
        onnx_type, dims = given[name]
        graph.input.append(value_info(name, onnx_type, dims))
    wanted = set(part.weights)
    for tensor in model.graph.initializer:
        if tensor.name in wanted:
            graph.initializer.append(inlined(tensor, data))
    graph.output.extend(ValueInfoProto(name=name) for name in part.makes)
    return result


def inlined(tensor: TensorProto, data: Mapping[str, bytes]) -> TensorProto:
    """The tensor with its data inside."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data[tensor.name])
