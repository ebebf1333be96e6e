"""The products of a graph by weights in a few bits: which they take, and of which shape."""

from __future__ import annotations

from dataclasses import dataclass

from .onnx_pb2 import ModelProto
from .wiring import attribute

__all__ = ["NBitsProduct", "nbits_products"]

INT8_ACTIVATIONS = 4
"""The accuracy_level of a MatMulNBits node that may be computed from activations in int8."""


@dataclass(frozen=True)
class NBitsProduct:
    """A MatMulNBits node: y = W x, W [n, k], with a scale, and maybe a zero point, for each `block` of a row."""

    weights: str
    scales: str
    n: int
    k: int
    block: int
    int8: bool
    """Whether its activations may be rounded to int8."""
    bits: int = 4
    zeros: str = ""


def nbits_products(model: ModelProto) -> tuple[NBitsProduct, ...]:
    """The nodes without a bias or an order of columns, whose weights no other node shares."""
    found: dict[str, NBitsProduct] = {}
    shared: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "MatMulNBits" and len(node.input) > 1 and node.input[1] in found:
            shared.add(node.input[1])
        plain = len(node.input) >= 3 and not any(node.input[4:])
        if node.op_type != "MatMulNBits" or not plain:
            continue
        n, k, block = (attribute(node, name, 0) for name in ("N", "K", "block_size"))
        int8 = attribute(node, "accuracy_level", 0) == INT8_ACTIVATIONS
        zeros = node.input[3] if len(node.input) > 3 else ""
        bits = attribute(node, "bits", 4)
        found[node.input[1]] = NBitsProduct(node.input[1], node.input[2], n, k, block, int8, bits, zeros)
    return tuple(product for name, product in found.items() if name not in shared)
