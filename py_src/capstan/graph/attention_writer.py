"""Writes GroupQueryAttention into a graph, in place of attention in primitive operations (plain_attention.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node_writer import NodeWriter
from .onnx_pb2 import ModelProto
from .rotary_nodes import ComputedRows, add_rows
from .total_length import add_lengths
from .wiring import Wiring, captured_names

__all__ = ["LINEAR", "Attention", "Rotary", "still", "tidy", "write"]

LINEAR = {"MatMul", "MatMulNBits", "Add"}
"""Operators whose results, as a layer has them before attention, are [batch, positions, heads x head size]."""


@dataclass(frozen=True)
class Rotary:
    """Describes a rotary embedding: the angles of position p are p times the frequencies, and cosines and sines are
    multiplied by `scale`.
    """

    frequencies: tuple[float, ...]
    scale: float


ROTATED = 16
"""The elements of rotated heads are a multiple of this."""


def still(head_size: int) -> Rotary | None:
    """Angles of zero, which change nothing: only attention that rotates heads takes packed q, k and v. None for heads
    that cannot be rotated.
    """
    return None if head_size % ROTATED else Rotary((0.0,) * (head_size // 2), 1.0)


@dataclass(frozen=True)
class Attention:
    """Describes the attention of one layer: tensors [batch, positions, heads x head size] before rotary embedding, and
    the attention over them.
    """

    query: str
    key: str
    value: str
    scale: float
    rotary: Rotary | None
    """None if heads are not rotated."""
    output: str
    kind: int | None = None
    """The element type to which the caches are cast before use; None without a cast."""
    three_dimensions: bool = False
    """Whether query, key and value are known to have three dimensions; otherwise tensors with separate heads are
    reshaped.
    """


def write(
    model: ModelProto,
    layers: Sequence[Attention],
    caches: Sequence[tuple[str, str, str, str]],
    heads: tuple[int, int, int],
    context_length: int,
    mask: str,
    positions: str,
) -> None:
    """Replace the recognised attention by GroupQueryAttention, in place; nodes without a reader are deleted."""
    graph = model.graph
    writer = Writer(model)
    declared = next(value.type.tensor_type.elem_type for value in graph.input if value.name == caches[0][0])
    kind = layers[0].kind or declared
    rotary = layers[0].rotary
    angles = writer.rotary(rotary, context_length, kind) if rotary is not None else ()
    seqlens, total = add_lengths(writer, mask)
    for node in graph.node:
        for place, name in enumerate(node.output):
            if any(name == layer.output for layer in layers) or any(name in cache[2:] for cache in caches):
                node.output[place] = writer.name("replaced")
    for layer, (past_key, past_value, present_key, present_value) in zip(layers, caches, strict=True):
        taken = [layer.query, layer.key, layer.value]
        if not layer.three_dimensions:
            taken = [writer.three_dimensions(name) for name in taken]
        writer.add(
            "GroupQueryAttention",
            [*taken, past_key, past_value, seqlens, total, *angles],
            outputs=[layer.output, present_key, present_value],
            domain="com.microsoft",
            num_heads=heads[0],
            kv_num_heads=heads[1],
            do_rotary=int(bool(angles)),
            scale=layer.scale,
        )
    graph.node.extend(writer.made)
    tidy(model)
    if positions not in Wiring(graph).consumers:
        for value in [value for value in graph.input if value.name == positions]:
            graph.input.remove(value)
    lasting = {name for cache in caches for name in cache[2:]}
    held = {name for cache in caches for name in cache}
    for value in [*graph.input, *graph.output]:
        if value.name in held:
            value.type.tensor_type.elem_type = kind
        dims = value.type.tensor_type.shape.dim
        if value.name == mask or value.name in lasting:
            dims[1 if value.name == mask else 2].Clear()
            dims[1 if value.name == mask else 2].dim_param = "total_sequence_length"
    del graph.value_info[:]
    if not any(item.domain == "com.microsoft" for item in model.opset_import):
        model.opset_import.add(domain="com.microsoft", version=1)


class Writer(NodeWriter):
    """Writes the nodes that all layers share, and those around one layer."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model.graph, "/capstan/plain_attention")
        self._kinds = {node.output[0]: node.op_type for node in model.graph.node if node.output}

    def rotary(self, rotary: Rotary, context_length: int, kind: int) -> tuple[str, str]:
        """Cosines and sines [context length, half the head size]; onnxruntime computes them once, when it makes the
        session.
        """
        cos, sin = (
            add_rows(self, ComputedRows(rotary.frequencies, rotary.scale, sine, context_length, kind))
            for sine in (False, True)
        )
        return cos, sin

    def three_dimensions(self, name: str) -> str:
        """Reshape a tensor so that its heads are side by side in one dimension."""
        if self._kinds.get(name) in LINEAR:
            return name
        return self.add("Reshape", [name, self.ints([0, 0, -1])])


def tidy(model: ModelProto) -> None:
    """Sort the nodes in topological order; delete nodes that no output needs, and unread constants."""
    graph = model.graph
    # Omitted outputs and omitted inputs have the same, empty name.
    producer = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    pending = [producer[value.name] for value in reversed(graph.output) if value.name in producer]
    done: set[int] = set()
    nodes: list[bytes] = []
    read = {value.name for value in graph.output}
    while pending:
        place = pending[-1]
        node = graph.node[place]
        sources = [*node.input, *captured_names(node)]
        missing = [producer[name] for name in sources if name in producer and producer[name] not in done]
        if missing and place not in done:
            pending.extend(missing)
            continue
        pending.pop()
        if place not in done:
            done.add(place)
            nodes.append(node.SerializeToString())
            read.update(sources)
    constants = [tensor.SerializeToString() for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    for data in nodes:
        graph.node.add().ParseFromString(data)
    for data in constants:
        graph.initializer.add().ParseFromString(data)
