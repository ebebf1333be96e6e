"""What onnxruntime-web has no CPU kernel for, in operators that it computes there.

Norms of q and k inside attention come before it, over heads side by side:

    q [batch, tokens, heads x head size] -> Reshape by head -> SimplifiedLayerNormalization -> Reshape -> attention

with q, k and v split first where they are one tensor. A quantized embedding is gathered packed and unpacked row by row,
so that no table of floats is made:

    weights -> Gather by ids -> two BitShifts, Concat (4 bits) -> Cast -> Sub zero points -> Mul scales -> Reshape
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .onnx_pb2 import AttributeProto, ModelProto, NodeProto, TensorProto
from .wiring import Wiring, attribute, copy_of, fresh_name, int64_tensor, integers

__all__ = ["gathers_unpacked", "norms_apart"]

ATTENTION = "GroupQueryAttention"
QUERY, KEY, VALUE, Q_NORM_WEIGHT, K_NORM_WEIGHT = 0, 1, 2, 14, 15
GATHER = "GatherBlockQuantized"
DATA, IDS, SCALES, ZERO_POINTS = 0, 1, 2, 3
SPLIT_BY_INPUT = 13
"""The first opset in which sizes are an input of Split."""
FLOATS: dict[int, str] = {TensorProto.FLOAT: "<f", TensorProto.FLOAT16: "<e"}
"""How a number of a type is packed."""


@dataclass
class Stand:
    """Nodes that come to stand before one node, with names of their own."""

    model: ModelProto
    node: NodeProto
    front: str
    made: list[NodeProto] = field(default_factory=list)

    @classmethod
    def before(cls, model: ModelProto, node: NodeProto) -> Stand:
        return cls(model, node, fresh_name(model.graph, f"{node.name or node.output[0]}/on_cpu"))

    def add(self, op: str, inputs: Iterable[str], part: str, outputs: int = 1, **attributes: int | float | str) -> str:
        """Add a node; the name of its output, or of what its outputs' names begin with."""
        name = f"{self.front}/{part}"
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        made = NodeProto(op_type=op, name=name, input=list(inputs), output=names)
        for key, value in attributes.items():
            item = made.attribute.add(name=key)
            if isinstance(value, str):
                item.type, item.s = AttributeProto.STRING, value.encode()
            elif isinstance(value, float):
                item.type, item.f = AttributeProto.FLOAT, value
            else:
                item.type, item.i = AttributeProto.INT, value
        self.made.append(made)
        return name

    def constant(self, tensor: TensorProto, part: str) -> str:
        tensor.name = f"{self.front}/{part}"
        if all(there.name != tensor.name for there in self.model.graph.initializer):
            self.model.graph.initializer.append(tensor)
        return tensor.name

    def ints(self, part: str, values: Sequence[int]) -> str:
        return self.constant(int64_tensor("", values), part)

    def insert(self) -> None:
        nodes = self.model.graph.node
        place = next(i for i, node in enumerate(nodes) if node is self.node or node.output == self.node.output)
        for each in reversed(self.made):
            nodes.insert(place, each)


def norms_apart(model: ModelProto) -> ModelProto:
    """Put the norms of q and k, where attention has them as inputs, into nodes before it."""
    result = copy_of(model)
    opset = max((item.version for item in result.opset_import if item.domain in ("", "ai.onnx")), default=0)
    tensors = {tensor.name: tensor for tensor in result.graph.initializer}
    for node in [node for node in result.graph.node if node.op_type == ATTENTION]:
        weights = [tensors.get(name) for name in node.input[Q_NORM_WEIGHT : K_NORM_WEIGHT + 1] if name]
        packed = not (len(node.input) > KEY and node.input[KEY])
        if len(weights) != 2 or None in weights or (packed and opset < SPLIT_BY_INPUT):
            continue
        normed(result, node, packed, int(tensors[node.input[Q_NORM_WEIGHT]].dims[0]))
    return result


def normed(model: ModelProto, node: NodeProto, packed: bool, head: int) -> None:
    """Replace the norms of one attention, in place."""
    stand = Stand.before(model, node)
    heads = (attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0))
    if packed:
        sizes = stand.ints("sizes", [head * count for count in (*heads, heads[1])])
        apart = stand.add("Split", [node.input[QUERY], sizes], "apart", outputs=3, axis=-1)
        for place in (QUERY, KEY, VALUE):
            node.input[place] = f"{apart}_{place}"
    epsilon = next((item.f for item in node.attribute if item.name == "qk_norm_epsilon"), 1e-6)
    for place, weight, count, part in (
        (QUERY, node.input[Q_NORM_WEIGHT], heads[0], "q"),
        (KEY, node.input[K_NORM_WEIGHT], heads[1], "k"),
    ):
        by_head = stand.ints(f"{part}_by_head", [0, 0, count, head])
        whole = stand.ints(f"{part}_whole", [0, 0, count * head])
        name = stand.add("Reshape", [node.input[place], by_head], f"{part}_heads")
        name = stand.add("SimplifiedLayerNormalization", [name, weight], f"{part}_normed", axis=-1, epsilon=epsilon)
        node.input[place] = stand.add("Reshape", [name, whole], part)
    stand.insert()
    del node.input[Q_NORM_WEIGHT:]
    while not node.input[-1]:
        del node.input[-1]
    for item in [item for item in node.attribute if item.name == "qk_norm_epsilon"]:
        node.attribute.remove(item)


def gathers_unpacked(model: ModelProto) -> ModelProto:
    """Compute quantized embeddings by other operators: rows of 4 or 8 bits in bytes, quantized along the last axis,
    gathered along the first; others stay as they are."""
    result = copy_of(model)
    for node in [node for node in result.graph.node if node.op_type == GATHER]:
        table = Table.of(result, node)
        if table is not None:
            table.unpack(Stand.before(result, node))
    return result


@dataclass
class Table:
    """A quantized embedding that is understood."""

    data: str
    """[rows, ...]: the bytes of each row."""
    row_bytes: int
    blocks: int
    block: int
    bits: int
    kind: int
    """The type of the scales and of the result."""
    ids_rank: int

    @classmethod
    def of(cls, model: ModelProto, node: NodeProto) -> Table | None:
        wiring = Wiring(model.graph)
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        data, scales = node.input[DATA], tensors.get(node.input[SCALES])
        rank = rank_of(model, node.input[IDS])
        bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 128)
        # Weights that are shared with the last product are reshaped: the rows are the same bytes.
        maker = wiring.producer.get(data)
        shape = None
        if maker is not None and maker.op_type == "Reshape":
            data, shape = maker.input[0], integers(wiring.constants.get(maker.input[1]))
        table = tensors.get(data)
        if table is None or scales is None or rank is None or bits not in (4, 8):
            return None
        shape = shape or list(table.dims)
        last = len(shape) - 1
        blocks = int(scales.dims[-1]) if len(scales.dims) == 2 else 0
        size = 1
        for dim in table.dims[1:]:
            size *= int(dim)
        points = node.input[ZERO_POINTS] if len(node.input) > ZERO_POINTS else ""
        holds = (
            table.data_type == TensorProto.UINT8
            and scales.data_type in FLOATS
            and attribute(node, "gather_axis", 0) == 0
            and attribute(node, "quantize_axis", 1) in (last, -1)
            and last == 1
            and shape[0] == table.dims[0] == scales.dims[0]
            and size * 8 == blocks * block * bits
            and (not points or points in tensors)
        )
        return cls(data, size, blocks, block, bits, scales.data_type, rank) if holds else None

    def unpack(self, stand: Stand) -> None:
        """Put the operators in place of the node."""
        node = stand.node
        ids, scales = node.input[IDS], node.input[SCALES]
        values = self.numbers(stand, self.data, ids, self.row_bytes, self.blocks * self.block, "data")
        by_block = stand.ints("by_block", [*self.front, self.blocks, self.block])
        values = stand.add("Reshape", [values, by_block], "blocks")
        one = stand.ints("a_number_each", [*self.front, self.blocks, 1])
        if len(node.input) > ZERO_POINTS and node.input[ZERO_POINTS]:
            row = (self.blocks * self.bits + 7) // 8
            points = self.numbers(stand, node.input[ZERO_POINTS], ids, row, row * 8 // self.bits, "points")
            if row * 8 != self.blocks * self.bits:
                bounds = [
                    stand.ints(f"points_{part}", [n]) for part, n in (("from", 0), ("to", self.blocks), ("on", -1))
                ]
                points = stand.add("Slice", [points, *bounds], "points_there")
            points = stand.add("Reshape", [points, one], "points_each")
        else:
            middle = struct.pack(FLOATS[self.kind], float(1 << (self.bits - 1)))
            points = stand.constant(TensorProto(data_type=self.kind, raw_data=middle), "middle")
        values = stand.add("Sub", [values, points], "centred")
        scales = stand.add("Gather", [scales, ids], "scales", axis=0)
        values = stand.add("Mul", [values, stand.add("Reshape", [scales, one], "scales_each")], "scaled")
        stand.add("Reshape", [values, stand.ints("row", [*self.front, self.blocks * self.block])], "rows")
        stand.made[-1].output[0] = node.output[0]
        stand.insert()
        stand.model.graph.node.remove(node)

    @property
    def front(self) -> list[int]:
        """In a Reshape's shape: the dimensions of the ids."""
        return [0] * self.ids_rank

    def numbers(self, stand: Stand, table: str, ids: str, row: int, count: int, part: str) -> str:
        """The unpacked rows of a table of bytes, as floats [ids..., count]."""
        rows = stand.add("Gather", [table, ids], f"{part}_packed", axis=0)
        if self.bits == 4:
            rows = stand.add("Reshape", [rows, stand.ints(f"{part}_bytes", [*self.front, row, 1])], f"{part}_columns")
            four = stand.constant(TensorProto(data_type=TensorProto.UINT8, raw_data=b"\x04"), "four")
            # Bits that are shifted out of a byte are lost, which leaves the lower half.
            low = stand.add("BitShift", [rows, four], f"{part}_shifted", direction="LEFT")
            low = stand.add("BitShift", [low, four], f"{part}_low", direction="RIGHT")
            high = stand.add("BitShift", [rows, four], f"{part}_high", direction="RIGHT")
            rows = stand.add("Concat", [low, high], f"{part}_halves", axis=-1)
        rows = stand.add("Reshape", [rows, stand.ints(f"{part}_row", [*self.front, count])], f"{part}_rows")
        return stand.add("Cast", [rows], f"{part}_numbers", to=self.kind)


def rank_of(model: ModelProto, name: str) -> int | None:
    """Dimensions of an input or a constant; None where that is not told."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            return len(tensor.dims)
    for value in model.graph.input:
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return None
