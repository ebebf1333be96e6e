"""Decides which weights of a graph on WebGPU become inputs, like a decoder's, and which stay initializers.

Only a few operations read a decoder's weights. Other graphs may have initializers that onnxruntime needs as values when
it makes the session, or that a kernel reads on the host; as inputs these would be read back in each run, or refused. So
only weights that a listed operation reads on the GPU become inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto
from .turned_weights import turned_weights
from .weight_inputs import CONSTANT_BYTES, WeightEntry, entry_of, external_entries
from .wiring import captured_names, changed_in_place, copy_of, prune, subgraphs

__all__ = ["data_ends", "data_entries", "ends_of", "kept_initializers", "kept_tensors", "make_inline", "prepared"]

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
PACKED = (TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)

FLOAT_READERS = frozenset(
    "MatMul Gemm Conv ConvTranspose FusedConv MatMulNBits QMoE Gather GatherElements Add Sub Mul Div Pow Where Concat "  # noqa: SIM905
    "LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization "
    "RMSNormalization BatchNormalization InstanceNormalization BiasAdd BiasGelu FastGelu BiasSplitGelu Einsum "
    "DequantizeLinear GatherBlockQuantized RotaryEmbedding GroupQueryAttention MultiHeadAttention "
    "Attention Transpose Reshape Unsqueeze Squeeze Expand Cast Identity".split()
)
"""Operations whose float inputs onnxruntime-web's WebGPU kernels read on the GPU, whether they are constants or not."""
PACKED_READERS = frozenset(["MatMulNBits", "GatherBlockQuantized", "DequantizeLinear", "QMoE"])
"""The same for integers that represent floats."""
NOT_FOLDED = "DequantizeLinear"
"""Operators that onnxruntime computes in each run even from constants."""


def prepared(model: ModelProto) -> ModelProto:
    """The same model without the nodes and initializers that nothing reads. If every weight that the model transposes
    may become a graph input, the load transposes these weights.
    """
    with changed_in_place(model) as twin:
        turned = turned_weights(twin)
    kept = kept_initializers(turned)
    if any(entry.parts and entry.name in kept for entry in external_entries(turned)):
        turned = copy_of(model)
        prune(turned.graph)
    return turned


def kept_initializers(model: ModelProto) -> dict[str, str]:
    """The external initializers that stay initializers, with the reason: "" for small ones, which need none."""
    graph = model.graph
    nodes = list(graph.node)
    folded = folded_nodes(graph)
    readers: dict[str, list[int]] = {}
    captured: dict[str, str] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(index)
        captured.update(dict.fromkeys(captured_names(node), node.op_type))
    outputs = {value.name for value in graph.output}
    found: dict[str, str] = {}
    for entry in external_entries(model):
        if entry.length <= CONSTANT_BYTES:
            found[entry.name] = ""
        elif entry.name in captured:
            found[entry.name] = f"a subgraph of {captured[entry.name]} reads it"
        elif entry.name in outputs:
            found[entry.name] = "it is an output of the graph"
        else:
            reasons = (why_kept(entry, nodes[index], index in folded) for index in readers.get(entry.name, ()))
            if reason := next(filter(None, reasons), ""):
                found[entry.name] = reason
    return found


def why_kept(entry: WeightEntry, reader: NodeProto, folded: bool) -> str:
    """The reason why a weight must be an initializer for a node that reads it; "" if it may be an input."""
    if folded:
        return f"{reader.op_type} has only constant inputs, so onnxruntime computes it once for a session"
    known = FLOAT_READERS if entry.onnx_type in FLOATS else PACKED_READERS if entry.onnx_type in PACKED else ()
    return "" if reader.op_type in known else f"{reader.op_type} may read a constant of {entry.dtype} on the host"


def folded_nodes(graph: GraphProto) -> set[int]:
    """The indices of the nodes that compute only from constants, which onnxruntime computes when it makes the
    session.
    """
    constants = {tensor.name for tensor in graph.initializer}
    found: set[int] = set()
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant":
            constants.update(node.output)
        elif (
            node.op_type != NOT_FOLDED
            and any(node.input)
            and all(name in constants for name in node.input if name)
            and not list(subgraphs(node))
        ):
            constants.update(node.output)
            found.add(index)
    return found


def kept_tensors(model: ModelProto) -> Iterator[tuple[TensorProto, WeightEntry, str]]:
    """The tensors of the data files that stay in the graph, with the reason: those of `kept_initializers`, and all in
    subgraphs and attributes."""
    kept = kept_initializers(model)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and tensor.name in kept:
            yield tensor, entry_of(tensor), kept[tensor.name]
    for tensor in inner_tensors(model.graph):
        entry = entry_of(tensor)
        small = entry.length <= CONSTANT_BYTES
        yield tensor, entry, "" if small else "it is inside a node"


def inner_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The external tensors of attributes, and of subgraphs at any depth."""
    for node in graph.node:
        for item in node.attribute:
            for tensor in [item.t, *item.tensors] if item.HasField("t") else item.tensors:
                if tensor.data_location == TensorProto.EXTERNAL:
                    yield tensor
        for subgraph in subgraphs(node):
            for tensor in subgraph.initializer:
                if tensor.data_location == TensorProto.EXTERNAL:
                    yield tensor
            yield from inner_tensors(subgraph)


def make_inline(tensor: TensorProto, data: bytes) -> None:
    """Put an external tensor's bytes into the graph."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data


def data_entries(model: ModelProto) -> list[WeightEntry]:
    """All tensors of a model in data files, those of inner graphs too."""
    return [*external_entries(model), *map(entry_of, inner_tensors(model.graph))]


def data_ends(model: ModelProto) -> dict[str, int]:
    """The number of bytes that a model needs of each of its data files, by location, in alphabetical order."""
    return ends_of(data_entries(model))


def ends_of(entries: Iterable[WeightEntry]) -> dict[str, int]:
    """The number of bytes that tensors need of each of their data files, by location, in alphabetical order."""
    ends: dict[str, int] = {}
    for entry in entries:
        ends[entry.location] = max(ends.get(entry.location, 0), entry.end)
    return dict(sorted(ends.items()))
