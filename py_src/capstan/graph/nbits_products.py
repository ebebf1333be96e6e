"""Finds a graph's MatMulNBits nodes, with their weights and shapes, and the sums of blocks that belong to their
minima.
"""

from __future__ import annotations

from dataclasses import dataclass

from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import Wiring, attribute, copy_of, fresh_name, integers

__all__ = ["NBitsProduct", "nbits_products", "sums_by_products"]

ONE = b"\x00\x00\x80\x3f"
"""The bytes of 1 in float32."""
INT8_ACTIVATIONS = 4
"""The accuracy_level of a MatMulNBits node that may be computed from activations in int8."""


@dataclass(frozen=True)
class NBitsProduct:
    """Describes a MatMulNBits node: y = W x, W [n, k], with a scale, and maybe a zero point, for each `block` of
    a row.
    """

    weights: str
    scales: str
    n: int
    k: int
    block: int
    int8: bool
    """Whether its activations may be rounded to int8."""
    bits: int = 4
    zeros: str = ""
    minima: str = ""
    """Minima [k / block, n], if all readers of y add the product of the blocks' sums of x with these."""


def nbits_products(model: ModelProto) -> tuple[NBitsProduct, ...]:
    """The MatMulNBits nodes without a bias or an order of columns, whose weights no other node shares."""
    found: dict[str, NBitsProduct] = {}
    wiring = Wiring(model.graph)
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
        minima = minima_of(wiring, node, k // block if block else 0, block)
        found[node.input[1]] = NBitsProduct(node.input[1], node.input[2], n, k, block, int8, bits, zeros, minima)
    return tuple(product for name, product in found.items() if name not in shared)


def minima_of(wiring: Wiring, node: NodeProto, blocks: int, block: int) -> str:
    """The minima that belong to a matrix product of `blocks` blocks, as a GGUF file's graph has them; "" without
    minima.
    """
    readers = wiring.consumers.get(node.output[0], [])
    if len(readers) != 1 or readers[0].op_type != "Add" or node.output[0] in wiring.outputs:
        return ""
    others = [wiring.producer.get(name) for name in readers[0].input if name != node.output[0]]
    below = others[0] if len(others) == 1 else None
    if below is None or below.op_type != "MatMul":
        return ""
    return below.input[1] if blocks_of(wiring, below) == (node.input[0], [0, 0, blocks, block]) else ""


def blocks_of(wiring: Wiring, product: NodeProto) -> tuple[str, list[int]] | None:
    """The values whose sums over blocks a product multiplies, and their shape; None for another product."""
    sums = wiring.producer.get(product.input[0])
    if sums is None or sums.op_type != "ReduceSum" or attribute(sums, "keepdims", 1) or len(sums.input) < 2:
        return None
    apart = wiring.producer.get(sums.input[0])
    if apart is None or apart.op_type != "Reshape" or integers(wiring.constants.get(sums.input[1])) != [-1]:
        return None
    shape = integers(wiring.constants.get(apart.input[1]))
    return (apart.input[0], shape) if shape and shape[-1] > 0 else None


def sums_by_products(model: ModelProto) -> ModelProto:
    """Compute the float32 sums of blocks, which matrix products with minima read, by matrix products with ones: on a
    software adapter onnxruntime-web's sums of 32 elements take 4.5 times as long. Sums in float16 stay: on a GPU they
    take half the time (benches/NOTES.md).
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
    ones: dict[int, str] = {}
    for product in list(graph.node):
        found = blocks_of(wiring, product) if product.op_type == "MatMul" else None
        if found is None or types.get(product.input[1]) != TensorProto.FLOAT:
            continue
        block = found[1][-1]
        if block not in ones:
            ones[block] = fresh_name(graph, f"capstan.ones_{block}")
            graph.initializer.add(name=ones[block], data_type=TensorProto.FLOAT, dims=[block], raw_data=ONE * block)
        sums = wiring.producer[product.input[0]]
        sums.op_type, sums.input[1] = "MatMul", ones[block]
        del sums.attribute[:]
    return result
