"""Replaces MatMulNBits nodes by matrix products with the same weights in float32, for the CPU in a page.

    MatMulNBits(x, W, scales[, zero points])      becomes      FusedMatMul(x, V), V = (W - zero points) * scales, [n, k]

onnxruntime-web's CPU provider has no kernel of MatMulNBits for one row: it converts the weights to floats in every run,
which takes ten times as long as reading floats (benches/NOTES.md). V is made while a model loads
(web/src/worker/wide_weights.ts), with one rounding for each number, and takes 8 times the memory of four bits.

Matrix products in float16 get a Cast before and a Cast after them. The provider's own kernel also computes them in
float32, and it has no kernel for matrix products in float16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .attention_writer import tidy
from .node_writer import add_attribute, new_node
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .weight_inputs import WeightEntry, entry_of
from .wiring import Wiring, attribute, copy_of, fresh_name, prune

__all__ = ["FloatProducts", "WIDE_FILES", "WideWeight", "wide_products"]

MICROSOFT = "com.microsoft"

WIDE_FILES = "capstan.wide"
"""The beginning of the names of data files that are made; a number follows."""
WIDTHS = (4, 8)
PLAIN_INPUTS = 4
"""The inputs of a product without a bias and without an order of its columns."""


@dataclass(frozen=True)
class WideWeight:
    """A weight [n, k] that is made: (q - zero) * scale for each block of k."""

    location: str
    """The name of its data file."""
    n: int
    k: int
    bits: int
    block: int
    packed: WeightEntry
    """uint8 [n, blocks, block * bits / 8], the lower bits first."""
    scales: WeightEntry
    """float32 or float16 [n, blocks]."""
    zeros: WeightEntry | None
    """uint8 [n, blocks * bits / 8 rounded up], the lower bits first; None if all are half of the range."""
    level: int = 0
    """The accuracy_level of the product: 4 is for activations in 8 bits."""

    @property
    def bytes(self) -> int:
        return 4 * self.n * self.k

    @property
    def halves(self) -> bool:
        """Whether the scales, and the product's input and output, are float16."""
        return self.scales.onnx_type == TensorProto.FLOAT16

    def as_json(self) -> dict[str, Any]:
        """The weight in the form that web/src/worker/wide_weights.ts reads."""

        def place(entry: WeightEntry) -> tuple[str, int]:
            return entry.location, entry.offset

        sizes = {"n": self.n, "k": self.k, "bits": self.bits, "block": self.block, "halves": self.halves}
        places = {"packed": place(self.packed), "scales": place(self.scales)}
        return {"location": self.location, **sizes, **places, "zeros": place(self.zeros) if self.zeros else None}


def wide_products(model: ModelProto, most: int) -> tuple[ModelProto, tuple[WideWeight, ...]]:
    """The same model, in which matrix products use float32 weights, and these weights. At most `most` bytes of them are
    made. MatMulNBits nodes stay if they have a bias, an order of columns, other types or weights inside model.onnx, or
    if `most` is exceeded.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    products = FloatProducts(result)
    made: dict[tuple[str, ...], tuple[str, WideWeight]] = {}
    left = most
    for node in [node for node in graph.node if node.op_type == "MatMulNBits"]:
        key = tuple(node.input[1:])
        if key not in made:
            wide = wide_weight(wiring, node, f"{WIDE_FILES}.{len(made)}")
            if wide is None or wide.bytes > left:
                continue
            left -= wide.bytes
            made[key] = fresh_name(graph, f"{node.input[1]}_wide"), wide
            graph.initializer.append(external_floats(made[key][0], (wide.n, wide.k), wide.location))
        name, wide = made[key]
        products.replace(node, name, wide.halves)
    products.finish()
    return result, tuple(wide for _, wide in made.values())


class FloatProducts:
    """Makes nodes of a graph compute in float32, with casts around them in a float16 graph."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._floats: dict[str, str] = {}
        """The float32 tensors by the float16 ones that such nodes read."""
        self._casts = False

    def replace(self, node: NodeProto, weight: str, half: bool) -> None:
        """Replace a product's weight by the float32 weight [n, k] of that name; `half` if the product reads and writes
        float16.
        """
        x = node.input[0]
        del node.input[:], node.attribute[:]
        node.op_type, node.domain = "FusedMatMul", MICROSOFT
        add_attribute(node, "transB", 1)
        if half:
            x = self.widened(x)
            self.narrow(node)
        node.input.extend([x, weight])

    def widened(self, x: str) -> str:
        """The name of a float16 tensor's values in float32."""
        if x not in self._floats:
            graph = self._model.graph
            self._floats[x] = fresh_name(graph, f"{x}_float")
            graph.node.append(new_node("Cast", [x], [self._floats[x]], to=TensorProto.FLOAT))
            self._casts = True
        return self._floats[x]

    def narrow(self, node: NodeProto) -> None:
        """Cast the float32 output of a node to float16."""
        y, graph = node.output[0], self._model.graph
        node.output[0] = fresh_name(graph, f"{y}_float")
        graph.node.append(new_node("Cast", node.output, [y], to=TensorProto.FLOAT16))
        self._casts = True

    def finish(self) -> None:
        """Sort the nodes, and delete unread ones."""
        if self._casts:
            tidy(self._model)
        else:
            prune(self._model.graph)


def wide_weight(wiring: Wiring, node: NodeProto, location: str) -> WideWeight | None:
    """The float32 weight for a matrix product; None for a matrix product that stays."""
    n, k, block = (attribute(node, name, 0) for name in ("N", "K", "block_size"))
    bits, level = attribute(node, "bits", 4), attribute(node, "accuracy_level", 0)
    named = [name for name in node.input[1:] if name]
    tensors = [wiring.constants.get(name) for name in named]
    external = [each for each in tensors if each is not None and each.data_location == TensorProto.EXTERNAL]
    if any(node.input[PLAIN_INPUTS:]) or len(external) != len(named) or bits not in WIDTHS or not block:
        return None
    kinds = [each.data_type for each in external]
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    if kinds[0] != TensorProto.UINT8 or kinds[1] not in floats or kinds[2:] not in ([], [TensorProto.UINT8]):
        return None
    packed, scales, *zeros = (entry_of(each) for each in external)
    blocks = -(-k // block)
    scale = 4 if kinds[1] == TensorProto.FLOAT else 2
    sizes = [n * blocks * (block * bits // 8), scale * n * blocks, n * -(-blocks * bits // 8)]
    entries = [packed, scales, *zeros]
    if any(entry.parts or entry.length != size for entry, size in zip(entries, sizes, strict=False)):
        return None
    return WideWeight(location, n, k, bits, block, packed, scales, zeros[0] if zeros else None, level)


def external_floats(name: str, dims: Sequence[int], location: str) -> TensorProto:
    """The initializer of a float32 weight that is the whole data file at `location`."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL, dims=dims)
    for key, value in (("location", location), ("offset", "0"), ("length", str(4 * math.prod(dims)))):
        tensor.external_data.add(key=key, value=value)
    return tensor
