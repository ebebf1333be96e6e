"""Lets two matrix products make the gate and the values of an MLP, where an export has one product and one Split.

    MatMulNBits(x, W [2 N, K]) -> Split    MatMulNBits(x, W_0), MatMulNBits(x, W_1)    W_p: N rows of W

Rows are multiplied as before, so results are equal. Tapes compute two products with a gate between them in one kernel.
"""

from __future__ import annotations

from .node_writer import set_attribute
from .onnx_pb2 import ModelProto, NodeProto
from .split_weights import ROWS, Splitter
from .weight_ranges import RANGE_STEP, NotInRangesError
from .wiring import Wiring, attribute, copy_of, integers

__all__ = ["products_apart"]


def products_apart(model: ModelProto) -> ModelProto:
    """The model with two products in place of each MatMulNBits whose result is only split into halves. Others stay
    unchanged, and so do products whose weights have other readers.
    """
    wiring = Wiring(model.graph)
    if not any(halved(wiring, node) for node in model.graph.node if node.op_type == "Split"):
        return model
    result = copy_of(model)
    wiring, splitter = Wiring(result.graph), Splitter(result, 0)
    for split in [node for node in result.graph.node if node.op_type == "Split"]:
        product = halved(wiring, split)
        if product is None:
            continue
        try:
            parts = [half(splitter, product, place) for place in range(2)]
        except NotInRangesError:
            continue
        for part, output in zip(parts, split.output, strict=True):
            part.output[0] = output
        splitter.replace([product, split], parts, split.output[1])
    splitter.forget()
    return result


def halved(wiring: Wiring, split: NodeProto) -> NodeProto | None:
    """The product whose result a Split halves along its last axis; None for another Split."""
    product = wiring.producer.get(split.input[0])
    if product is None or product.op_type != "MatMulNBits" or len(split.output) != 2:
        return None
    rows, sizes = (
        attribute(product, "N", 0),
        integers(wiring.constants.get(split.input[1])) if split.input[1:] else None,
    )
    alone = wiring.consumers[product.output[0]] == [split] and product.output[0] not in wiring.outputs
    weights = [name for place, name in enumerate(product.input) if place in ROWS and name]
    own = all(len(wiring.consumers[name]) == 1 and name in wiring.constants for name in weights)
    whole = rows % (2 * RANGE_STEP) == 0 and sizes == [rows // 2] * 2 and attribute(split, "axis", 0) in (-1, 2)
    return product if alone and own and whole else None


def half(splitter: Splitter, product: NodeProto, place: int) -> NodeProto:
    """The product of the first or the second half of the rows. Raises NotInRangesError."""
    total = attribute(product, "N", 0)
    count = total // 2
    inputs = [
        splitter.rows(name, total, place * count, count) if name and at in ROWS else name
        for at, name in enumerate(product.input)
    ]
    found = splitter.twin(product, f"{product.name or product.output[0]}_half_{place}", inputs)
    set_attribute(found, "N", count)
    return found
