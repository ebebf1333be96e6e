"""Splits weights that are larger than a binding of the GPU adapter.

    Gather(W [V, H], ids)     Gather(W_0, ids % R), Gather(W_1, ids % R) -> Where(ids / R == 1)      W_p: R rows of W
    MatMulNBits(x, W [N, K])  MatMulNBits(x, W_0), MatMulNBits(x, W_1) -> Concat                     likewise
    MatMul(x, W [K, N])       MatMul(x, W_0), MatMul(x, W_1) -> Concat                               columns of W
    Gemm(x, W, C)             Gemm(x, W_0, C_0), Gemm(x, W_1, C_1) -> Concat                         the same, or rows

Rows of a table are read, and elements of a matrix product are summed, as before, so the results are equal. If a table
and a matrix product share bytes of a file, their parts also share bytes, since equal rows give equal ranges.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .nbits_products import minima_of
from .node_writer import new_node
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Part
from .weight_inputs import WeightEntry, entry_of, known_external_entries, made_of
from .weight_ranges import NotInRangesError, bound_bytes, columns_of, ranges_of, rows_of, step_of
from .wiring import Wiring, attribute, copy_of, delete, int64_tensor, integers, taken_names

__all__ = ["ROWS", "SplitWeight", "Splitter", "split_weights"]

ROWS = (1, 2, 3, 5)
"""Inputs of MatMulNBits with values for each row of the weights: the weights, scales, zero points, a bias."""
GROUP_INDEX = 4


@dataclass(frozen=True)
class SplitWeight:
    """A weight that is larger than a binding."""

    name: str
    bytes: int
    """Its bytes, or those of the file that are rearranged into it, if these are more."""
    parts: int
    """The number of parts; 0 if it stays whole, so that the adapter cannot hold it."""
    why: str = ""
    """The reason why it stays whole; else empty."""


@dataclass(frozen=True)
class SplitTable:
    """A table in parts of `size` rows; the last part may have fewer."""

    parts: tuple[str, ...]
    """The names of their weights."""
    size: int


def split_weights(
    model: ModelProto, largest: int
) -> tuple[ModelProto, tuple[SplitWeight, ...], tuple[SplitTable, ...]]:
    """The model with parts of at most `largest` bytes in place of larger weights; these weights in the order in which
    they are read, and the tables among them. 0 means no limit.
    """
    large = {entry.name: entry for entry in known_external_entries(model) if largest and bound_bytes(entry) > largest}
    if not large:
        return model, (), ()
    result = copy_of(model)
    splitter = Splitter(result, largest)
    large |= {name: large[whole] for name, whole in splitter.reshaped(large).items()}
    found: dict[str, SplitWeight] = {}
    for node in list(result.graph.node):
        names = [name for name in node.input if name in large]
        if not names or node.output[0] in splitter.gone:
            continue
        try:
            parts, why = splitter.split(node), ""
        except NotInRangesError as reason:
            parts, why = 0, f"node {node.name or node.output[0]} ({node.op_type}) reads it whole: {reason}"
        for name in names:
            if large[name].name not in found or why:
                found[large[name].name] = SplitWeight(large[name].name, bound_bytes(large[name]), parts, why)
    splitter.forget()
    return result, tuple(found.values()), tuple(splitter.tables)


class Splitter:
    """Replaces nodes that read a whole weight by nodes that read its parts."""

    def __init__(self, model: ModelProto, largest: int) -> None:
        self.graph, self.largest = model.graph, largest
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.taken = taken_names(self.graph)
        self.tables: list[SplitTable] = []
        self.added: set[str] = set()
        """Initializers."""
        self.told: set[str] = set()
        """Values whose type and shape are declared."""
        self.gone: set[str] = set()
        """Outputs of nodes that were replaced together with an earlier node."""
        self.made: dict[tuple[str, int, int], str] = {}
        """The name of a range of rows or columns, by the weight's name, the first and the count."""

    def fresh(self, wanted: str) -> str:
        """An unused name, which is used from now on."""
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name

    def reshaped(self, large: Collection[str]) -> dict[str, str]:
        """Replace each Reshape of a large weight by a weight with the new dimensions; returns the original weight for
        each of them.

        A table that is also a product's weight has this form."""
        wiring = Wiring(self.graph)
        found: dict[str, str] = {}
        for node in [node for name in large for node in wiring.consumers.get(name, ()) if node.op_type == "Reshape"]:
            tensor, dims = self.tensors[node.input[0]], integers(wiring.constants.get(node.input[1]))
            if not dims or min(dims) < 1 or dims[0] != tensor.dims[0] or node.output[0] in wiring.outputs:
                continue
            entry, name = entry_of(tensor), self.fresh(node.output[0] + "_weight")
            self.add(made_of(name, tensor.data_type, dims, entry.location, entry.pieces))
            found[name] = tensor.name
            for reader in wiring.consumers.get(node.output[0], ()):
                reader.input[:] = [name if each == node.output[0] else each for each in reader.input]
            self.replace([node], [], "")
        return found

    def split(self, node: NodeProto) -> int:
        """Split the weight that a node reads; returns the number of parts. Raises NotInRangesError if the node needs
        the whole weight.
        """
        splits: dict[str, Callable[[NodeProto], int]] = {
            "Gather": self.table,
            "GatherBlockQuantized": self.table,
            "MatMulNBits": self.packed_product,
            "MatMul": self.dense_product,
            "Gemm": self.affine_product,
        }
        if node.op_type not in splits:
            raise NotInRangesError(f"only {', '.join(sorted(splits))} can be computed in parts")
        return splits[node.op_type](node)

    def table(self, node: NodeProto) -> int:
        quantized = node.op_type == "GatherBlockQuantized"
        if attribute(node, "gather_axis" if quantized else "axis", 0) != 0:
            raise NotInRangesError("it is not looked up by its first axis")
        places = [place for place in (0, 2, 3) if place < len(node.input) and node.input[place]] if quantized else [0]
        total = self.tensor(node.input[0]).dims[0]
        if quantized and attribute(node, "quantize_axis", 1) % len(self.tensor(node.input[0]).dims) == 0:
            raise NotInRangesError("its blocks are along its first axis")
        ranges = self.ranges(node, places, total)
        size, name, ids = ranges[0][1], node.name or node.output[0], node.input[1]
        within = ("Mod", self.number(size))
        rows = self.looked_up(f"{name}_row", ids, total, [within])
        parts = self.looked_up(f"{name}_part", ids, total, [("Div", self.number(size)), ("Reshape", self.column())])
        nodes, last = [*rows, *parts], rows
        if ranges[-1][1] < size:
            # Row numbers of ids in other parts may be beyond this part.
            least = ("Min", self.number(ranges[-1][1] - 1))
            last = self.looked_up(f"{name}_last_row", ids, total, [within, least])
            nodes += last
        for index, (first, count) in enumerate(ranges):
            inputs = list(node.input)
            inputs[1] = (last if index + 1 == len(ranges) else rows)[-1].output[0]
            for place in places:
                inputs[place] = self.rows(node.input[place], total, first, count)
            before = nodes[-1].output[0]
            nodes.append(self.twin(node, f"{name}_{index}", inputs))
            self.known_as(node.output[0], nodes[-1].output[0])
            if index:
                found = nodes[-1].output[0]
                nodes.append(self.node("Equal", f"{name}_is_{index}", parts[-1].output[0], self.number(index)))
                nodes.append(self.node("Where", f"{name}_to_{index}", nodes[-1].output[0], found, before))
                self.known_as(node.output[0], nodes[-1].output[0])
        self.replace([node], nodes, node.output[0])
        names = (self.rows(node.input[0], total, first, count) for first, count in ranges)
        self.tables.append(SplitTable(tuple(names), size))
        return len(ranges)

    def looked_up(self, name: str, ids: str, total: int, steps: Sequence[tuple[str, str]]) -> list[NodeProto]:
        """The nodes that look each id up in a table. The operators in `steps` make this table, one after another, from
        the numbers 0 to `total`.

        onnxruntime computes that table once for a session. Tokens are int64, which the GPU accepts as indices;
        arithmetic on them would run on the host in an eager run.
        """
        made = [self.node("Range", f"{name}_all", *(self.number(each) for each in (0, total, 1)))]
        for kind, other in steps:
            made.append(self.node(kind, f"{name}_{kind.lower()}", made[-1].output[0], other))
        return [*made, self.node("Gather", name, made[-1].output[0], ids)]

    def packed_product(self, node: NodeProto) -> int:
        n, name = attribute(node, "N", 0), node.name or node.output[0]
        places = [place for place in ROWS if place < len(node.input) and node.input[place]]
        ranges = self.ranges(node, places, n)
        below = self.below(node)
        whole = node if below is None else below[1]
        nodes: list[NodeProto] = []
        results: list[str] = []
        for index, (first, count) in enumerate(ranges):
            inputs = list(node.input)
            for place in places:
                inputs[place] = self.rows(node.input[place], n, first, count)
            part = self.twin(node, f"{name}_{index}", inputs)
            for item in part.attribute:
                if item.name == "N":
                    item.i = count
            nodes.append(part)
            self.known_as(node.output[0], part.output[0], count)
            if below is not None:
                minima = self.columns(below[0].input[1], first, count)
                other = self.twin(below[0], f"{name}_minima_{index}", [below[0].input[0], minima])
                nodes += [other, self.twin(below[1], f"{name}_whole_{index}", [part.output[0], other.output[0]])]
                for each in nodes[-2:]:
                    self.known_as(whole.output[0], each.output[0], count)
            results.append(nodes[-1].output[0])
        self.gone.update(each.output[0] for each in (below or ())[:1])
        self.beside([node, *(below or ())], nodes, results, whole.output[0])
        return len(ranges)

    def below(self, node: NodeProto) -> tuple[NodeProto, NodeProto] | None:
        """The matrix product with minima that a GGUF file's graph adds to another matrix product, and the sum of
        both.
        """
        wiring = Wiring(self.graph)
        k, block = attribute(node, "K", 0), attribute(node, "block_size", 0)
        minima = minima_of(wiring, node, k // block if block else 0, block)
        if not minima:
            return None
        [whole] = wiring.consumers[node.output[0]]
        [product] = [wiring.producer[name] for name in whole.input if name != node.output[0]]
        own = len(wiring.consumers[product.output[0]]) == 1 and product.output[0] not in wiring.outputs
        return (product, whole) if own and minima in self.tensors else None

    def dense_product(self, node: NodeProto) -> int:
        weight = self.tensor(node.input[1])
        if len(weight.dims) != 2:
            raise NotInRangesError(f"it has {len(weight.dims)} dimensions")
        total, name = weight.dims[1], node.name or node.output[0]
        entry = entry_of(weight)
        ranges = ranges_of(total, -(-bound_bytes(entry) // total), self.largest, step_of([entry]))
        nodes = []
        for index, (first, count) in enumerate(ranges):
            inputs = [node.input[0], self.columns(weight.name, first, count)]
            nodes.append(self.twin(node, f"{name}_{index}", inputs))
            self.known_as(node.output[0], nodes[-1].output[0], count)
        self.beside([node], nodes, [each.output[0] for each in nodes], node.output[0])
        return len(ranges)

    def affine_product(self, node: NodeProto) -> int:
        by_rows, weight = attribute(node, "transB", 0), self.tensor(node.input[1])
        total, name = weight.dims[0 if by_rows else 1], node.name or node.output[0]
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias and list(self.tensor(bias).dims) != [total]:
            raise NotInRangesError(f"{bias} has {list(self.tensor(bias).dims)} instead of one for each of {total}")
        ranges = self.ranges(node, [1], total)
        nodes = []
        for index, (first, count) in enumerate(ranges):
            inputs = list(node.input)
            inputs[1] = (
                self.rows(weight.name, total, first, count) if by_rows else self.columns(weight.name, first, count)
            )
            if bias:
                inputs[2] = self.rows(bias, total, first, count)
            nodes.append(self.twin(node, f"{name}_{index}", inputs))
            self.known_as(node.output[0], nodes[-1].output[0], count)
        self.beside([node], nodes, [each.output[0] for each in nodes], node.output[0])
        return len(ranges)

    def ranges(self, node: NodeProto, places: Sequence[int], total: int) -> list[tuple[int, int]]:
        """The ranges of rows for these inputs of a node, such that the largest input fits."""
        tensors = [self.tensor(node.input[place]) for place in places]
        external = [entry_of(each) for each in tensors if each.data_location == TensorProto.EXTERNAL]
        return ranges_of(
            total, max(-(-bound_bytes(each) // total) for each in external), self.largest, step_of(external)
        )

    def tensor(self, name: str) -> TensorProto:
        if name not in self.tensors:
            raise NotInRangesError(f"{name} is computed")
        return self.tensors[name]

    def rows(self, name: str, total: int, first: int, count: int) -> str:
        """The name of a weight with some of the rows of another weight, whose first axis has all of them."""
        tensor = self.tensor(name)
        dims = list(tensor.dims)
        if not dims or dims[0] % total or (dims[0] != total and len(dims) > 1):
            raise NotInRangesError(f"{name} has {dims}, without a value for each of {total} rows")
        dims[0] = dims[0] // total * count
        return self.part(tensor, first, count, lambda entry: rows_of(entry, total, first, count), dims, total)

    def columns(self, name: str, first: int, count: int) -> str:
        """The name of a weight with some of the columns of a matrix."""
        tensor = self.tensor(name)
        dims = [tensor.dims[0], count]
        return self.part(tensor, first, count, lambda entry: columns_of(entry, first, count), dims)

    def part(
        self,
        tensor: TensorProto,
        first: int,
        count: int,
        parts_of: Callable[[WeightEntry], Sequence[Part]],
        dims: Sequence[int],
        rows: int = 0,
    ) -> str:
        """A weight made of some parts of another weight, or of its bytes if it is in model.onnx."""
        key = (tensor.name, first, count)
        if key not in self.made:
            name = self.fresh(f"{tensor.name}_from_{first}")
            if tensor.data_location == TensorProto.EXTERNAL:
                entry = entry_of(tensor)
                made = made_of(name, tensor.data_type, dims, entry.location, parts_of(entry))
            elif rows and tensor.raw_data and len(tensor.raw_data) % rows == 0:
                row = len(tensor.raw_data) // rows
                data = tensor.raw_data[first * row : (first + count) * row]
                made = TensorProto(name=name, data_type=tensor.data_type, dims=dims, raw_data=data)
            else:
                raise NotInRangesError(f"the bytes of {tensor.name} are in model.onnx")
            self.add(made)
            self.made[key] = name
        return self.made[key]

    def beside(self, gone: Sequence[NodeProto], nodes: list[NodeProto], results: Sequence[str], output: str) -> None:
        """Replace `gone` by `nodes`, whose results are concatenated."""
        name = self.fresh(f"{gone[0].name or gone[0].output[0]}_beside")
        concat = new_node("Concat", results, [output], name=name, axis=-1)
        self.replace(gone, [*nodes, concat], output)

    def replace(self, gone: Sequence[NodeProto], nodes: Sequence[NodeProto], output: str) -> None:
        """Replace nodes by others, if any, at the place of the last replaced one; the last new node makes `output`."""
        if nodes:
            nodes[-1].output[0] = output
        names = {each.output[0] for each in gone}
        places = [place for place, each in enumerate(self.graph.node[:]) if each.output[0] in names]
        for place in reversed(places):
            del self.graph.node[place]
        for index, each in enumerate(nodes):
            self.graph.node.insert(places[-1] + 1 - len(places) + index, each)

    def twin(self, node: NodeProto, name: str, inputs: Sequence[str]) -> NodeProto:
        """A node with the same operation on other inputs."""
        found = NodeProto()
        found.CopyFrom(node)
        found.name = self.fresh(name)
        found.input[:] = inputs
        found.output[0] = self.fresh(f"{name}/output_0")
        return found

    def node(self, kind: str, name: str, *inputs: str) -> NodeProto:
        name = self.fresh(name)
        return NodeProto(op_type=kind, name=name, input=inputs, output=[f"{name}/output_0"])

    def known_as(self, whole: str, part: str, columns: int = 0) -> None:
        """Declare a value's type and shape like another's, or like `columns` of its columns, if the file declares the
        other value.
        """
        for value in [*self.graph.value_info, *self.graph.output]:
            if value.name == whole and value.type.tensor_type.shape.dim:
                self.told.add(part)
                twin = self.graph.value_info.add()
                twin.CopyFrom(value)
                twin.name = part
                if columns:
                    twin.type.tensor_type.shape.dim[-1].Clear()
                    twin.type.tensor_type.shape.dim[-1].dim_value = columns
                return

    def column(self) -> str:
        """The shape of a column, int64."""
        name = "/capstan/split/column"
        if name not in self.tensors:
            self.add(int64_tensor(name, [-1, 1]))
        return name

    def number(self, value: int) -> str:
        """An int32 of no dimensions."""
        name = f"/capstan/split/{value}"
        if name not in self.tensors:
            data = struct.pack("<i", value)
            self.add(TensorProto(name=name, data_type=TensorProto.INT32, raw_data=data))
        return name

    def add(self, tensor: TensorProto) -> None:
        self.tensors[tensor.name] = tensor
        self.added.add(tensor.name)
        self.graph.initializer.append(tensor)

    def forget(self) -> None:
        """Drop unread weights and values, also those that were made for a node that stays."""
        read = {name for node in self.graph.node for name in node.input}
        read |= {value.name for value in self.graph.output}
        made = {name for node in self.graph.node for name in node.output}
        delete(self.graph.value_info, lambda value: value.name in self.told - made)
        unread = ({name for name, _, _ in self.made} | self.added) - read
        delete(self.graph.initializer, lambda tensor: tensor.name in unread)
