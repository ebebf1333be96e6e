"""Recognises root-mean-square norms in primitive operations, as Optimum exports them, and rewrites them to
SimplifiedLayerNormalization.

    x -> Pow(2) -> ReduceMean(last axis) -> Add(epsilon) -> Sqrt -> 1 / ... -> Mul(x) -> Mul(weight)

If x is cast to float32 before and back to float16 after, the norm takes the float16 values, since it computes in
float32 internally.
"""

from __future__ import annotations

from .attention_writer import tidy
from .node_writer import new_node
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .plain_attention import floats
from .wiring import Wiring, attribute, copy_of, integers

__all__ = ["simplified_norms"]


def simplified_norms(model: ModelProto) -> ModelProto:
    """The same model with one node for each recognised norm."""
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    weights = {value.name: value.type.tensor_type.shape for value in graph.input}
    ranks = {name: len(shape.dim) for name, shape in weights.items()}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Mul" and len(node.input) == 2:
            for place in (0, 1):
                found = norm_of(wiring, node.input[1 - place]) if ranks.get(node.input[place]) == 1 else None
                if found is not None:
                    become_norm(node, found[0], node.input[place], found[1])
                    break
    tidy(result)
    return result


def become_norm(node: NodeProto, x: str, weight: str, epsilon: float) -> None:
    """Turn the last product of a norm into one node for the whole norm."""
    name, operator = node.name, "SimplifiedLayerNormalization"
    node.CopyFrom(new_node(operator, [x, weight], node.output, name=name, axis=-1, stash_type=1, epsilon=epsilon))


def norm_of(wiring: Wiring, name: str) -> tuple[str, float] | None:
    """The tensor that is divided by its root mean square, and the epsilon; None for another product."""
    node = wiring.producer.get(name)
    narrowed = node is not None and node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT16
    if node is not None and node.op_type == "Cast":
        node = wiring.producer.get(node.input[0])
    if node is None or node.op_type not in ("Mul", "Div"):
        return None
    places = (0,) if node.op_type == "Div" else (0, 1)
    for place in places:
        x = node.input[place]
        root = node.input[1 - place] if node.op_type == "Div" else inverted(wiring, node.input[1 - place])
        epsilon = root_mean_square(wiring, root, x) if root is not None else None
        if epsilon is None:
            continue
        widened = wiring.producer.get(x)
        if not narrowed:
            return x, epsilon
        if widened is not None and widened.op_type == "Cast":
            return widened.input[0], epsilon
    return None


def inverted(wiring: Wiring, name: str) -> str | None:
    """The divisor of a tensor that is 1 / divisor; None for other tensors."""
    node = wiring.producer.get(name)
    if node is None:
        return None
    if node.op_type == "Reciprocal":
        return node.input[0]
    if node.op_type == "Div" and floats(wiring.constants.get(node.input[0])) == [1.0]:
        return node.input[1]
    return None


def root_mean_square(wiring: Wiring, name: str, x: str) -> float | None:
    """The epsilon, if a tensor is sqrt(mean(x * x) + epsilon) over the last axis."""
    root = wiring.producer.get(name)
    total = wiring.producer.get(root.input[0]) if root is not None and root.op_type == "Sqrt" else None
    if total is None or total.op_type != "Add":
        return None
    for place in (0, 1):
        mean = wiring.producer.get(total.input[place])
        epsilon = floats(wiring.constants.get(total.input[1 - place]))
        if mean is None or mean.op_type != "ReduceMean" or epsilon is None or len(epsilon) != 1:
            continue
        axes = next((list(item.ints) for item in mean.attribute if item.name == "axes"), None)
        if axes is None and len(mean.input) > 1:
            axes = integers(wiring.constants.get(mean.input[1]))
        square = wiring.producer.get(mean.input[0])
        if axes == [-1] and attribute(mean, "keepdims", 1) == 1 and square is not None and is_square(wiring, square, x):
            return epsilon[0]
    return None


def is_square(wiring: Wiring, node: NodeProto, x: str) -> bool:
    if node.op_type == "Mul":
        return list(node.input) == [x, x]
    return node.op_type == "Pow" and node.input[0] == x and floats(wiring.constants.get(node.input[1])) == [2.0]
