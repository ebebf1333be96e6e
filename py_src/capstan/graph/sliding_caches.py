"""Lets caches of attention over a window hold only the last positions.

Such a cache has room for the window and for the positions that run next. The position of its first row is the base.
Before the cache is full, the rows of the last window move to its front, and the base grows (device/webgpu/sliding.py).
In the graph, the attention's lengths count from the base, and so do the rows of its rotary tables, which become inputs:

    seqlens_k, total_sequence_length - base -> seqlens_k, total_sequence_length of attention over a window

Nothing else depends on the base: attention derives places in caches, distances and rows of tables from these lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedModelError
from .fed_lengths import is_last, is_total
from .long_rope import COS_CACHE, TableRows, rows_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .total_length import ATTENTION, SEQLENS_K, TOTAL_LENGTH
from .weight_inputs import DTYPES
from .wiring import Wiring, attribute, copy_of, fresh_name, prune, value_info

__all__ = ["SLACK", "SlidingCaches", "WindowTable", "sliding_caches", "whole_caches"]

PAST_KEY, PAST_VALUE, POSITION_IDS, BIAS = 3, 4, 9, 10
"""Inputs of GroupQueryAttention."""
LENGTH = 2
"""The index of a cache's positions among its dimensions."""
SLACK = 512
"""The smallest capacity of a cache besides its window, in positions: twice the number that bursts under way may add."""


@dataclass(frozen=True)
class WindowTable:
    """Cosines or sines: an input of the graph, whose first row belongs to the base."""

    name: str
    dtype: str
    width: int
    """Elements of a row."""
    rows: TableRows
    """The rows of all positions, from position 0 on."""


@dataclass(frozen=True)
class SlidingCaches:
    """The caches of a model that do not need to hold all positions."""

    window: int
    """The longest window in positions, including the new one."""
    base: str
    """An input of the graph, int32 [1]: the position of the first row."""
    pasts: tuple[str, ...]
    """The inputs that read these caches."""
    tables: tuple[WindowTable, ...]

    def room(self, capacity: int, chunk: int) -> int:
        """The capacity of a sliding cache in a sequence of `capacity` positions, to which a run adds at most
        `chunk`.
        """
        return min(capacity, self.window + max(chunk, SLACK))

    def slides(self, capacity: int, chunk: int) -> bool:
        """Whether a sliding cache has room for fewer positions than `capacity`."""
        return self.room(capacity, chunk) < capacity

    def holds(self, base: int, length: int) -> bool:
        """Whether caches that begin at `base` have all positions to which the position after `length` attends."""
        return base == 0 or length >= base + self.window


def sliding_caches(
    model: ModelProto, mask: str = "attention_mask", file: bytes = b""
) -> tuple[ModelProto, SlidingCaches | None, str]:
    """Let the lengths of all attention over a window count from a base; return the new model, its sliding caches, and
    the reason if there are none (empty if no attention has a window). `file` has the bytes of the parsed model.

    Run it after `total_length_on_gpu`. Either all windows are rewritten or none.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    users = [node for node in graph.node if node.op_type == ATTENTION and attribute(node, "local_window_size", -1) > 0]
    if not users:
        return result, None, ""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in users:
        reason = unfit(wiring, node, mask, tensors)
        if reason:
            return result, None, f"node {node.name}: {reason}"
    tables: dict[str, WindowTable] = {}
    try:
        for name in (name for node in users for name in node.input[COS_CACHE : COS_CACHE + 2]):
            tensor = tensors[name]
            rows, dtype = rows_of(name, tensor, file), DTYPES[tensor.data_type][0]
            tables[name] = WindowTable(fresh_name(graph, f"capstan.window.{name}"), dtype, tensor.dims[1], rows)
    except UnsupportedModelError as error:
        return result, None, str(error)
    base, last, total = (fresh_name(graph, f"capstan.window_{part}") for part in ("base", "seqlens_k", "total"))
    lengths = (users[0].input[SEQLENS_K], users[0].input[TOTAL_LENGTH])
    for name, table in tables.items():
        value = graph.input.add(name=table.name)
        value.type.tensor_type.elem_type = tensors[name].data_type
        value.type.tensor_type.shape.dim.add().dim_param = "window_positions"
        value.type.tensor_type.shape.dim.add().dim_value = table.width
    graph.input.append(value_info(base, TensorProto.INT32, [1]))
    for node in users:
        node.input[SEQLENS_K], node.input[TOTAL_LENGTH] = last, total
        for place in (COS_CACHE, COS_CACHE + 1):
            node.input[place] = tables[node.input[place]].name
    pasts = tuple(node.input[place] for node in users for place in (PAST_KEY, PAST_VALUE))
    presents = {node.output[place] for node in users for place in (1, 2)}
    for value in (*graph.input, *graph.output):
        # onnxruntime assumes that dimensions of the same name have the same size.
        if value.name in pasts or value.name in presents:
            way = "past" if value.name in pasts else "total"
            value.type.tensor_type.shape.dim[LENGTH].Clear()
            value.type.tensor_type.shape.dim[LENGTH].dim_param = f"held_{way}_length"
    at = next(place for place, node in enumerate(graph.node) if last in node.input)
    for length, name in zip(lengths, (last, total), strict=True):
        graph.node.insert(at, NodeProto(op_type="Sub", name=name, input=[length, base], output=[name]))
    prune(graph)
    window = max(attribute(node, "local_window_size", 0) for node in users)
    return result, SlidingCaches(window, base, pasts, tuple(tables.values())), ""


def unfit(wiring: Wiring, node: NodeProto, mask: str, tensors: dict[str, TensorProto]) -> str:
    """The reason why an attention's positions cannot count from a base; empty without one."""
    if len(node.input) <= COS_CACHE + 1 or len(node.output) < 3 or attribute(node, "do_rotary", 0) != 1:
        return "it does not rotate queries and keys itself"
    if not is_last(wiring, node.input[SEQLENS_K], mask) or not is_total(wiring, node.input[TOTAL_LENGTH], mask):
        return f"its lengths are not sums of {mask}"
    for place, what in ((POSITION_IDS, "position_ids"), (BIAS, "attention_bias")):
        if place < len(node.input) and node.input[place]:
            return f"it has an input {what}"
    for name in node.input[COS_CACHE : COS_CACHE + 2]:
        if name not in tensors or len(tensors[name].dims) != 2:
            return f"its rotary table {name} is not a constant of rows"
    return ""


def whole_caches(model: ModelProto) -> ModelProto:
    """The same model with all positions in attention's caches.

    With `sliding_window_cache`, which the model builder's exports for the CPU have, attention over a window accepts a
    cache shorter than the sequence and indexes it from the window's start. Without this attribute attention computes
    the same over a cache of all positions, which Capstan binds.
    """
    result = copy_of(model)
    for node in result.graph.node:
        for found in [item for item in node.attribute if item.name == "sliding_window_cache"]:
            node.attribute.remove(found)
    return result
