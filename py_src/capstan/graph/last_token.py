"""Limits the logits to those of the last token.

A prefill over S tokens needs the output projection at the last position; over all of them it is the largest matrix
product of the model and writes S x vocabulary floats. The rewrite slices the hidden state just before the projection:

    hidden [B, S, H] -> Slice(axis 1, -1:) -> [B, 1, H] -> MatMulNBits | MatMul -> elementwise... -> logits [B, 1, V]

A projection in parts (split_weights.py) consists of several matrix products that read the same hidden state, and a
Concat of their results.

If the first of the last positions is an input of the graph, each run chooses the number of positions with logits.
"""

from __future__ import annotations

from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto
from .wiring import Wiring, copy_of, fresh_name, int64_tensor, value_info

__all__ = ["CUT", "every_position", "last_token_logits", "logits_cut"]

PROJECTIONS = {"MatMulNBits", "MatMul"}
CUT = "/capstan/last_token/Slice"
"""The beginning of the name of the node that takes the last positions."""

ELEMENTWISE = {"Cast", "Mul", "Div", "Add", "Sub", "Tanh", "Where", "Identity"}


def last_token_logits(model: ModelProto, logits: str = "logits", first: str = "") -> tuple[ModelProto, str]:
    """Limit the logits to the last position. Returns the new model, and the reason if it is unchanged (else empty).

    With `first` the logits start at the position in the input of that name: int64 [1], -1 for the last one.

    A graph with an unknown path from `logits` to its projection comes back as an equal copy with the reason: its logits
    are [B, S, V] and the caller reads the last row.
    """
    result = copy_of(model)
    graph = result.graph
    declared = next((value for value in graph.output if value.name == logits), None)
    if declared is None:
        return result, f"no output named {logits}"
    dims = declared.type.tensor_type.shape.dim
    if len(dims) != 3:
        return result, f"{logits} has {len(dims)} dimensions, 3 are expected"
    if dims[1].WhichOneof("value") == "dim_value" and dims[1].dim_value == 1:
        return result, f"{logits} already holds only the last position"
    wiring = Wiring(graph)
    path, reason = path_to_projection(wiring, logits)
    if reason:
        return result, reason
    projections = [step for step in path if step.op_type in PROJECTIONS]
    sliced = fresh_name(graph, CUT)
    node = last_position(graph, projections[0].input[0], sliced, first)
    for projection in projections:
        projection.input[0] = sliced
    insert_before(graph, projections[0], node)
    if first:
        graph.input.append(value_info(first, TensorProto.INT64, [1]))
        return result, ""
    touched = {name for step in path for name in step.output}
    for value in [*graph.value_info, *graph.output]:
        if value.name in touched and len(value.type.tensor_type.shape.dim) == 3:
            set_one(value.type.tensor_type.shape.dim[1])
    return result, ""


def logits_cut(model: ModelProto, logits: str = "logits") -> ModelProto:
    """The logits of the last position, cut from those of all positions: for graphs that `last_token_logits` cannot
    change.
    """
    result = copy_of(model)
    graph = result.graph
    whole = fresh_name(graph, "/capstan/last_token/all_positions")
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == logits:
                    names[place] = whole
    graph.node.append(last_position(graph, whole, logits))
    declared = next(value for value in graph.output if value.name == logits)
    set_one(declared.type.tensor_type.shape.dim[1])
    return result


def last_position(graph: GraphProto, source: str, output: str, first: str = "") -> NodeProto:
    """A node that takes the last position of a tensor [B, S, ...], or all positions beginning with the one in `first`;
    its other bounds become constants of the graph.
    """
    bounds = {part: fresh_name(graph, f"/capstan/last_token/{part}") for part in ("starts", "ends", "axes")}
    for part, bound in (("starts", -1), ("ends", 2**63 - 1), ("axes", 1)):
        if part == "starts" and first:
            bounds[part] = first
        else:
            graph.initializer.append(int64_tensor(bounds[part], [bound]))
    name = fresh_name(graph, CUT)
    return NodeProto(op_type="Slice", name=name, input=[source, *bounds.values()], output=[output])


def path_to_projection(wiring: Wiring, logits: str) -> tuple[list[NodeProto], str]:
    """The nodes from the logits up to the projection with all its parts, or the reason why there is no such path."""
    path: list[NodeProto] = []
    name = logits
    while True:
        node = wiring.producer.get(name)
        if node is None:
            return [], f"no node computes {name}"
        if name != logits and (len(wiring.consumers.get(name, [])) != 1 or name in wiring.outputs):
            return [], f"{name} has another reader, too"
        path.append(node)
        if node.op_type in PROJECTIONS:
            if not is_weight(wiring, node.input[1]):
                return [], f"node {node.name} ({node.op_type}) multiplies two computed tensors"
            return path, ""
        if parts := parts_beside(wiring, node):
            return [*path, *parts], ""
        if node.op_type not in ELEMENTWISE:
            return [], f"node {node.name} ({node.op_type}) lies between the projection and {logits}"
        computed = [source for source in node.input if source and not is_weight(wiring, source)]
        if len(set(computed)) != 1:
            return [], f"node {node.name} ({node.op_type}) joins {len(set(computed))} computed tensors"
        name = computed[0]


def parts_beside(wiring: Wiring, node: NodeProto) -> list[NodeProto]:
    """The matrix products of one input whose results a node concatenates, in graph order; empty for another node."""
    found = [product for name in node.input if (product := wiring.producer.get(name)) is not None]
    parts = node.op_type == "Concat" and len(found) == len(node.input) and len({each.input[0] for each in found}) == 1
    for each in found:
        alone = wiring.consumers[each.output[0]] == [node] and each.output[0] not in wiring.outputs
        parts = parts and alone and each.op_type in PROJECTIONS and is_weight(wiring, each.input[1])
    return found if parts else []


def is_weight(wiring: Wiring, name: str) -> bool:
    """Whether a tensor is a constant, a weight, or a weight reshaped (tied embeddings are transposed on the way)."""
    while name not in wiring.constants and name not in wiring.inputs:
        node = wiring.producer.get(name)
        if node is None or node.op_type not in {"Transpose", "Reshape", "Cast", "Identity", "DequantizeLinear"}:
            return False
        name = node.input[0]
    return True


def insert_before(graph: GraphProto, anchor: NodeProto, node: NodeProto) -> None:
    made = anchor.output[0]  # read by only one node
    graph.node.insert(next(index for index, item in enumerate(graph.node) if made in item.output), node)


def set_one(dim: TensorShapeProto.Dimension) -> None:
    dim.Clear()
    dim.dim_value = 1


def every_position(model: ModelProto) -> ModelProto:
    """Undo `last_token_logits` without `first`, or `logits_cut`: their Slice passes on its whole input."""
    result = copy_of(model)
    graph = result.graph
    cuts = [node for node in graph.node if node.name.startswith(CUT) and node.op_type == "Slice"]
    for node in cuts:
        del node.input[1:]
        node.op_type = "Identity"
    for value in [*graph.value_info, *graph.output] if cuts else ():
        # The shapes after the Slice were declared with one position.
        shape = value.type.tensor_type.shape.dim
        if len(shape) == 3 and shape[1].dim_value == 1:
            shape[1].Clear()
    return result
