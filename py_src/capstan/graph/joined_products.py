"""Lets one matrix product make q, k and v of an attention, instead of three.

MatMulNBits nodes hold weights row after row. So three nodes that read the same input equal one node whose weights,
scales and zero points are concatenated from the three. The weights of MatMul nodes are put side by side. Bytes only
change places, and each output is computed as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .node_writer import NodeWriter, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Beside, Part
from .weight_inputs import DTYPES, entry_of, made_of
from .wiring import Wiring, attribute, copy_of, fresh_name

__all__ = ["joined_products", "packed_apart"]

BETWEEN = ("Add", "Reshape", "SimplifiedLayerNormalization", "RotaryEmbedding")
"""Operators allowed between a product and the attention: a bias, a norm of each head, rotary embedding."""
PAST_KEY = 3
"""The input of GroupQueryAttention that is its cache of keys."""
GROUP_INDEX = 4
"""The input of MatMulNBits that reorders columns."""
SPLIT_WITH_SIZES = 13
"""The opset from which Split takes its sizes as an input."""


@dataclass(frozen=True)
class Path:
    """The path from a product to an input of an attention."""

    product: NodeProto
    between: tuple[NodeProto, ...]
    """The nodes from the product down."""

    @property
    def biased(self) -> bool:
        """Whether the only node on the path is a sum."""
        return [node.op_type for node in self.between] == ["Add"]


def joined_products(model: ModelProto, *, packed: bool = True) -> ModelProto:
    """Let one MatMulNBits or MatMul node make q, k and v of each GroupQueryAttention. This is done if three nodes that
    read the same input make them and differ only in their rows.

    An attention that reads the results of these nodes, or their sums with biases, reads the packed result, unless
    `packed` is false. Other nodes in between read their part of the packed result. Nodes with other readers stay
    unchanged, and so do weights that other nodes share or that are in several files.
    """
    result = copy_of(model)
    opset = opset_of(result)
    for node in [node for node in result.graph.node if node.op_type == "GroupQueryAttention"]:
        if len(node.input) < 3 or not all(node.input[:3]):
            continue
        wiring = Wiring(result.graph)
        paths = [path for name in node.input[:3] if (path := path_to(wiring, name)) is not None]
        if len(paths) != 3 or not alike(wiring, [path.product for path in paths]):
            continue
        joiner = Joiner(result, wiring, paths)
        direct = packed and not any(path.between for path in paths)
        biased = packed and all(path.biased for path in paths)
        if direct:
            joiner.attention_reads_all(node, biased=False)
        elif biased and joiner.biases() is not None:
            joiner.attention_reads_all(node, biased=True)
        elif opset >= SPLIT_WITH_SIZES and joiner.weights() is not None:
            joiner.parts_are_split()
    return result


def packed_apart(model: ModelProto, head_sizes: Mapping[str, int]) -> ModelProto:
    """The model with separate q, k and v in each GroupQueryAttention that reads them packed: onnxruntime-web's rotary
    embedding of packed q, k and v binds more storage buffers than some adapters allow. `head_sizes` maps the input for
    the cache of keys to the head size.
    """
    result = copy_of(model)
    graph = result.graph
    if opset_of(result) < SPLIT_WITH_SIZES:
        return result
    for node in [node for node in graph.node if node.op_type == "GroupQueryAttention"]:
        heads, kv_heads = (attribute(node, name, 0) for name in ("num_heads", "kv_num_heads"))
        size = head_sizes.get(node.input[PAST_KEY], 0) if len(node.input) > PAST_KEY else 0
        if not size or any(node.input[1:3]):
            continue
        front = node.name or node.output[0]
        writer = NodeWriter(graph, f"{front}/apart")
        sizes = writer.ints([heads * size, kv_heads * size, kv_heads * size], "sizes")
        parts = [writer.name(part) for part in "qkv"]
        writer.add("Split", [node.input[0], sizes], outputs=parts, axis=-1)
        node.input[:3] = parts
        writer.insert(place_of(graph, node))
    return result


def opset_of(model: ModelProto) -> int:
    """The version of the standard operators."""
    return max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)


def path_to(wiring: Wiring, name: str) -> Path | None:
    """The path from the product that makes a tensor, if the tensors on it have no other readers."""
    between: list[NodeProto] = []
    while len(wiring.consumers.get(name, [])) == 1 and name not in wiring.outputs:
        node = wiring.producer.get(name)
        if node is None:
            return None
        if node.op_type == "MatMulNBits" or is_dense(wiring, node):
            return Path(node, tuple(reversed(between)))
        if node.op_type not in BETWEEN:
            return None
        between.append(node)
        name = next((each for each in node.input if each not in wiring.constants), "")
    return None


def is_dense(wiring: Wiring, node: NodeProto) -> bool:
    """Whether a node multiplies by a dense matrix of weights."""
    weight = wiring.constants.get(node.input[1]) if node.op_type == "MatMul" else None
    return weight is not None and len(weight.dims) == 2 and node.input[0] not in wiring.constants


def alike(wiring: Wiring, products: Sequence[NodeProto]) -> bool:
    """Whether matrix products differ only in their rows."""
    first = products[0]
    described = [sorted(item.SerializeToString() for item in node.attribute if item.name != "N") for node in products]
    given = [(node.op_type, node.input[0], [bool(name) for name in node.input]) for node in products]
    grouped = len(first.input) > GROUP_INDEX and first.input[GROUP_INDEX]
    same = described.count(described[0]) == given.count(given[0]) == 3
    return len({node.output[0] for node in products}) == 3 and same and not grouped


class Joiner:
    """Joins the matrix products of one attention."""

    def __init__(self, model: ModelProto, wiring: Wiring, paths: Sequence[Path]) -> None:
        self.graph, self.wiring, self.paths = model.graph, wiring, paths
        self.products = [path.product for path in paths]
        self.dense = self.products[0].op_type == "MatMul"
        self.sizes = [self.columns(product) for product in self.products]
        nodes = [*self.products, *(path.between[0] for path in paths if path.biased)]
        self.taken = {name for node in nodes for name in node.input if name in wiring.constants}
        self.made = {node.output[0] for path in paths for node in (path.product, *path.between)}

    def columns(self, product: NodeProto) -> int:
        """The number of columns of a product's result."""
        return int(self.wiring.constants[product.input[1]].dims[1]) if self.dense else attribute(product, "N", 0)

    def weights(self) -> list[TensorProto] | None:
        """The weight inputs of the joined product, in order; None if they cannot be joined."""
        inputs = [[node.input[place] for node in self.products] for place in range(1, len(self.products[0].input))]
        return self.tensors([names for names in inputs if names[0]], beside=self.dense)

    def biases(self) -> list[TensorProto] | None:
        """The biases of the joined product; None if a path has no constant bias of its size."""
        found = []
        for path, size in zip(self.paths, self.sizes, strict=True):
            constants = [name for name in path.between[0].input if name in self.wiring.constants]
            if len(constants) != 1 or list(self.wiring.constants[constants[0]].dims) != [size]:
                return None
            found.append(constants[0])
        return self.tensors([found])

    def tensors(self, wanted: Sequence[Sequence[str]], *, beside: bool = False) -> list[TensorProto] | None:
        made = []
        join = side_by_side if beside else together
        for names in wanted:
            if any(len(self.wiring.consumers[name]) != 1 or name not in self.wiring.constants for name in names):
                return None
            tensor = join([self.wiring.constants[name] for name in names], fresh_name(self.graph, f"{names[0]}_joined"))
            if tensor is None:
                return None
            made.append(tensor)
        return made

    def attention_reads_all(self, attention: NodeProto, *, biased: bool) -> None:
        biases = self.biases() if biased else []
        packed = self.product(fresh_name(self.graph, f"{self.products[0].output[0]}_joined"))
        if packed is None or biases is None:
            return
        if biased:
            sums = [path.between[0] for path in self.paths]
            total = fresh_name(self.graph, f"{sums[0].output[0]}_joined")
            self.known_as(sums[0].output[0], total)
            bias = self.graph.initializer.add()
            bias.CopyFrom(biases[0])
            sums[0].input[:] = [packed, bias.name]
            sums[0].output[0] = packed = total
            for node in sums[1:]:
                self.graph.node.remove(node)
        attention.input[0], attention.input[1], attention.input[2] = packed, "", ""
        self.forget()

    def parts_are_split(self) -> None:
        packed = self.product(fresh_name(self.graph, f"{self.products[0].output[0]}_joined"))
        assert packed is not None, "the caller checked `weights`"
        writer = NodeWriter(self.graph, f"{self.products[0].name}_split")
        parts = [node.output[0] for node in self.products]
        writer.add("Split", [packed, writer.ints(self.sizes)], outputs=parts, axis=-1)
        writer.insert(self.place + 1)
        self.forget()

    def product(self, packed: str) -> str | None:
        """Put the joined product in the place of the first one; returns its output."""
        tensors = self.weights()
        if tensors is None:
            return None
        self.known_as(self.products[0].output[0], packed)
        first = self.products[0]
        node = NodeProto()
        node.CopyFrom(first)
        node.name = fresh_name(self.graph, f"{first.name}_joined")
        node.output[0] = packed
        given = iter(tensors)
        node.input[1:] = [next(given).name if name else "" for name in first.input[1:]]
        for item in [item for item in node.attribute if item.name == "N"]:
            item.i = sum(self.sizes)
        self.place = min(list(self.graph.node).index(each) for each in self.products)
        for each in self.products:
            self.graph.node.remove(each)
        self.graph.node.insert(self.place, node)
        for tensor in tensors:
            self.graph.initializer.add().CopyFrom(tensor)
        return packed

    def known_as(self, part: str, whole: str) -> None:
        """Declare the shape of a joined value, if the file declares that of its first part."""
        for value in [value for value in self.graph.value_info if value.name == part]:
            twin = self.graph.value_info.add()
            twin.CopyFrom(value)
            twin.name = whole
            twin.type.tensor_type.shape.dim[-1].Clear()
            twin.type.tensor_type.shape.dim[-1].dim_value = sum(self.sizes)

    def forget(self) -> None:
        """Drop unread initializers of the joined products, and value infos without a producer."""
        read = {name for node in self.graph.node for name in node.input}
        made = {name for node in self.graph.node for name in node.output}
        for tensor in [tensor for tensor in self.graph.initializer if tensor.name in self.taken - read]:
            self.graph.initializer.remove(tensor)
        for value in [value for value in self.graph.value_info if value.name in self.made - made]:
            self.graph.value_info.remove(value)


def together(tensors: Sequence[TensorProto], name: str) -> TensorProto | None:
    """Tensors one after the other along their first axis; None if they differ in other axes, or if their bytes are
    neither all in model.onnx nor all in one file.
    """
    first = tensors[0]
    if len({(tensor.data_type, tuple(tensor.dims[1:]), len(tensor.dims) > 0) for tensor in tensors}) != 1:
        return None
    dims = [sum(tensor.dims[0] for tensor in tensors), *first.dims[1:]]
    if all(tensor.raw_data and tensor.data_location != TensorProto.EXTERNAL for tensor in tensors):
        joined = TensorProto(name=name, data_type=first.data_type, dims=dims)
        joined.raw_data = b"".join(tensor.raw_data for tensor in tensors)
        return joined
    if not all(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
        return None
    entries = [entry_of(tensor) for tensor in tensors]
    parts = [part for entry in entries for part in entry.pieces]
    if len({entry.location for entry in entries}) != 1 or any(part.made % 4 for part in parts[:-1]):
        return None  # The bytes of a buffer are written in words.
    return made_of(name, first.data_type, dims, entries[0].location, parts)


def side_by_side(tensors: Sequence[TensorProto], name: str) -> TensorProto | None:
    """Matrices of one data file side by side; None if they differ in more than their columns, or if their rows are not
    whole words.
    """
    first = tensors[0]
    if len({(tensor.data_type, tensor.dims[0]) for tensor in tensors}) != 1:
        return None
    if not all(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
        return None
    entries = [entry_of(tensor) for tensor in tensors]
    bits = DTYPES[first.data_type][1]
    if len({entry.location for entry in entries}) != 1 or any(entry.parts for entry in entries):
        return None
    if any(entry.dims[1] * bits % 32 for entry in entries):
        return None
    columns = sum(entry.dims[1] for entry in entries)
    parts = [
        Part(entry.offset, entry.length, Beside(entry.dims[1] * bits // 8, columns * bits // 8)) for entry in entries
    ]
    return made_of(name, first.data_type, [first.dims[0], columns], entries[0].location, parts)
