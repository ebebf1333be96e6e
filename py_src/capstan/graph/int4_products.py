"""The int4 products of a graph: which weights they take, and of which shape."""

from __future__ import annotations

from dataclasses import dataclass

from .onnx_pb2 import ModelProto
from .wiring import attribute

__all__ = ["Int4Product", "int4_products"]

INT8_ACTIVATIONS = 4
"""The accuracy_level of a MatMulNBits node that may be computed from activations in int8."""


@dataclass(frozen=True)
class Int4Product:
    """A MatMulNBits node with 4 bits and symmetric scales: y = W x, W [n, k], one scale for each `block` of a row."""

    weights: str
    scales: str
    n: int
    k: int
    block: int
    int8: bool
    """Whether its activations may be rounded to int8."""


def int4_products(model: ModelProto) -> tuple[Int4Product, ...]:
    """Those nodes that neither have zero points or a bias nor share their weights with another node."""
    found: dict[str, Int4Product] = {}
    shared: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "MatMulNBits" and len(node.input) > 1 and node.input[1] in found:
            shared.add(node.input[1])
        plain = len(node.input) >= 3 and not any(node.input[3:])
        if node.op_type != "MatMulNBits" or not plain or attribute(node, "bits", 4) != 4:
            continue
        n, k, block = (attribute(node, name, 0) for name in ("N", "K", "block_size"))
        int8 = attribute(node, "accuracy_level", 0) == INT8_ACTIVATIONS
        found[node.input[1]] = Int4Product(node.input[1], node.input[2], n, k, block, int8)
    return tuple(product for name, product in found.items() if name not in shared)
