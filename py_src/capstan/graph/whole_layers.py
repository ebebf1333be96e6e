"""Recognises layer norms and Gelu in primitive operations, as Optimum exports them, and rewrites each to one
operator.

x - mean -> Pow(2) -> ReduceMean -> Add(epsilon) -> Sqrt -> (x - mean) / ... -> Mul(weight) -> Add(bias)
x -> Div(sqrt 2) -> Erf -> Add(1) -> Mul(x) -> Mul(0.5), the halving before or after
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .attention_writer import tidy
from .node_writer import new_node
from .onnx_pb2 import GraphProto, ModelProto, NodeProto
from .plain_attention import floats
from .plain_norms import root_mean_square
from .wiring import Wiring

__all__ = ["whole_layers"]

NEAR = 1e-3
"""The largest change of a constant by rounding to float16."""


def whole_layers(model: ModelProto) -> None:
    """Replace primitive operations that equal LayerNormalization or Gelu by these operators, in place."""
    graph = model.graph
    read_through_identities(graph)
    wiring = Wiring(graph)
    for node in list(graph.node):
        found = None
        if node.op_type == "Add":
            found = layer_norm(wiring, node)
        elif node.op_type == "Mul":
            found = gelu(wiring, node)
        if found is not None:
            node.CopyFrom(found)
    tidy(model)
    if not any(item.domain == "com.microsoft" for item in model.opset_import):
        model.opset_import.add(domain="com.microsoft", version=1)


def read_through_identities(graph: GraphProto) -> None:
    """Have nodes read the input of an Identity instead of its output, in place. Exports give a shared weight a name for
    each layer.
    """
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    for node in graph.node:
        for place, name in enumerate(node.input):
            while name in same:
                name = same[name]
            node.input[place] = name


def layer_norm(wiring: Wiring, node: NodeProto) -> NodeProto | None:
    """The norm whose last operation is the sum with its bias; None for another sum."""
    for place in (0, 1):
        product, bias = wiring.producer.get(node.input[place]), node.input[1 - place]
        if product is None or product.op_type != "Mul" or not is_vector(wiring, bias):
            continue
        for side in (0, 1):
            quotient, weight = wiring.producer.get(product.input[side]), product.input[1 - side]
            if quotient is None or quotient.op_type != "Div" or not is_vector(wiring, weight):
                continue
            centred = wiring.producer.get(quotient.input[0])
            epsilon = root_mean_square(wiring, quotient.input[1], quotient.input[0])
            if centred is None or centred.op_type != "Sub" or epsilon is None:
                continue
            mean = wiring.producer.get(centred.input[1])
            if mean is not None and mean.op_type == "ReduceMean" and mean.input[0] == centred.input[0]:
                inputs = [centred.input[0], weight, bias]
                return new_node(
                    "LayerNormalization", inputs, node.output, name=node.name, axis=-1, epsilon=epsilon, stash_type=1
                )
    return None


def is_vector(wiring: Wiring, name: str) -> bool:
    tensor = wiring.constants.get(name)
    return tensor is not None and len(tensor.dims) == 1


def gelu(wiring: Wiring, node: NodeProto) -> NodeProto | None:
    """The Gelu whose last operation is a product; None for another product."""
    factors, halves = factors_of(wiring, node.input), 0
    rest = list[str]()
    for name in factors:
        if is_number(wiring, name, 0.5):
            halves += 1
        else:
            rest.append(name)
    if halves != 1 or len(rest) != 2:
        return None
    for x, other in (rest, rest[::-1]):
        total = wiring.producer.get(other)
        if total is None or total.op_type != "Add":
            continue
        for place in (0, 1):
            erf = wiring.producer.get(total.input[place])
            if erf is None or erf.op_type != "Erf" or not is_number(wiring, total.input[1 - place], 1.0):
                continue
            scaled = wiring.producer.get(erf.input[0])
            if scaled is not None and scaled.input[0] == x and is_number(wiring, scaled.input[1], divisor_of(scaled)):
                return new_node("Gelu", [x], node.output, name=node.name, domain="com.microsoft")
    return None


def divisor_of(node: NodeProto) -> float:
    """The second input with which a Div or Mul divides by the root of 2: sqrt(2) or sqrt(0.5). NaN for other
    operators.
    """
    return {"Div": math.sqrt(2), "Mul": math.sqrt(0.5)}.get(node.op_type, math.nan)


def factors_of(wiring: Wiring, names: Iterable[str]) -> list[str]:
    """The factors of a product of two tensors; a tensor that is a product itself is replaced by its factors."""
    found = list[str]()
    for name in names:
        maker = wiring.producer.get(name)
        if maker is not None and maker.op_type == "Mul":
            found += maker.input
        else:
            found.append(name)
    return found


def is_number(wiring: Wiring, name: str, wanted: float) -> bool:
    values = floats(wiring.constants.get(wiring.original(name)))
    return values is not None and len(values) == 1 and abs(values[0] - wanted) < NEAR
