"""Writes nodes that use the tensors of a GGUF file: matrix products, tables and vectors. Their weights are parts of the
file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from ...errors import ModelFileError, UnsupportedModelError
from ...model_files.gguf.header import GgmlType, GgufFile, GgufTensor
from ...model_files.gguf.shards import shard_names
from ..node_writer import add_attribute
from ..onnx_pb2 import GraphProto, TensorProto
from ..parts import Part, Unpack
from ..weight_inputs import made_of
from ..wiring import int64_tensor
from .gguf_types import PACKED, Packing

__all__ = ["Rows", "TensorWriter", "node_name"]

EXACT_ACTIVATIONS = 1
"""The accuracy_level of products whose activations stay floats."""
HALF_BITS = 16
WORD = 4


@dataclass(frozen=True)
class Rows:
    """Describes rows of a matrix product's weights: a tensor [rows, columns] of the file, or a part of its rows."""

    tensor: GgufTensor
    halves: int = 0
    """See Unpack."""
    share: tuple[int, int] = (0, 1)
    """The index of the share, and the number of shares."""

    @property
    def count(self) -> int:
        return self.tensor.dims[0] // self.share[1]


class TensorWriter:
    """Writes nodes and weights into a graph."""

    def __init__(self, graph: GraphProto, file: GgufFile, location: str, element: int) -> None:
        """`location` is the name of the file, or of a shard of it; `element` the ONNX type of activations."""
        self.graph, self.file, self.element = graph, file, element
        self.locations = shard_names(location)
        self.read: set[str] = set()
        """The names of the tensors that the graph reads."""
        self._bits = HALF_BITS if element == TensorProto.FLOAT16 else 32
        self._sums: dict[tuple[str, int], str] = {}
        self._constants: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def tensor(self, name: str, *dims: int) -> GgufTensor:
        """A tensor of these dimensions. Raises ModelFileError if there is none."""
        found = self.file.tensors.get(name)
        if found is None or found.dims != dims:
            shown = "none" if found is None else " x ".join(map(str, found.dims))
            wanted = " x ".join(map(str, dims))
            raise ModelFileError(
                f"{self.file.name}: tensor {name}: expected {wanted}, as the metadata say, found {shown}; "
                "copy or convert the file again"
            )
        self.read.add(name)
        return found

    def node(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        *outputs: str,
        domain: str = "",
        **attributes: int | float | str | tuple[int, ...],
    ) -> str:
        """Add a node; returns its first output, which is `name`/output_0 unless it is given."""
        made = self.graph.node.add(op_type=kind, name=name, domain=domain, input=inputs)
        made.output.extend(outputs or (f"{name}/output_0",))
        for key, value in attributes.items():
            add_attribute(made, key, value)
        return made.output[0]

    def rms_norm(self, name: str, x: str, weight: str, epsilon: float, *outputs: str) -> str:
        """Add a node that divides x by the root of its squares' mean and multiplies it by the weight."""
        kind = "SimplifiedLayerNormalization"
        return self.node(kind, name, [x, weight], *outputs, epsilon=epsilon, axis=-1, stash_type=1)

    def integers(self, *values: int) -> str:
        """A constant int64 tensor [n]."""
        name = f"/model/constants/INT64/{list(values)}"
        if name not in self._constants:
            self._constants.add(name)
            self.graph.initializer.append(int64_tensor(name, values))
        return name

    def number(self, value: float) -> str:
        """A constant of one element, of the activations' type."""
        name = f"/model/constants/FLOAT/{value!r}"
        if name not in self._constants:
            self._constants.add(name)
            raw = struct.pack("<e" if self._bits == HALF_BITS else "<f", value)
            self.graph.initializer.append(TensorProto(name=name, data_type=self.element, raw_data=raw))
        return name

    def numbers(self, value: float, count: int) -> str:
        """A constant [count] of one number, of the activations' type."""
        name = f"/model/constants/FLOAT/{value!r} x {count}"
        if name not in self._constants:
            self._constants.add(name)
            raw = struct.pack("<e" if self._bits == HALF_BITS else "<f", value) * count
            self.graph.initializer.append(TensorProto(name=name, data_type=self.element, dims=[count], raw_data=raw))
        return name

    def floats(self, name: str, tensor: GgufTensor) -> str:
        """A float32 weight of a tensor [n], for activations of any type."""
        if tensor.type != GgmlType.F32:
            raise UnsupportedModelError(
                f"{self.file.name}: tensor {tensor.name} is of type {tensor.type.name}, expected F32; use another "
                "file of the model"
            )
        parts = [Part(tensor.offset, tensor.length)]
        return self._weight(name, list(tensor.dims), [Rows(tensor)], parts, TensorProto.FLOAT)

    def vector(self, name: str, tensors: Sequence[Rows]) -> str:
        """A weight made of tensors [n], one after the other; the graph concatenates tensors of several files."""
        groups = [list(group) for _, group in groupby(tensors, key=lambda each: each.tensor.shard)]
        if groups[1:]:
            held = [self.vector(f"{name}_{place}", group) for place, group in enumerate(groups)]
            return self.node("Concat", f"{node_name(name)}/Concat", held, axis=0)
        parts = [self._part(each, "values") for each in tensors]
        return self._weight(name, [sum(each.count for each in tensors)], tensors, parts, self.element)

    def weight(self, name: str, dims: Sequence[int], tensor: GgufTensor) -> str:
        """A weight of these dimensions that has the values of a tensor."""
        rows = [Rows(tensor)]
        return self._weight(name, dims, rows, [self._part(rows[0], "values")], self.element)

    def product(self, name: str, x: str, rows: Sequence[Rows]) -> str:
        """x times the rows of these tensors, one after the other, all of one type."""
        kind, columns = rows[0].tensor.type, rows[0].tensor.dims[1]
        n = sum(each.count for each in rows)
        packing = PACKED.get(kind)
        if packing is None:
            parts = [self._part(each, "values", n) for each in rows]
            weight = self._weight(f"{name}.weight", [columns, n], rows, parts, self.element)
            return self.node("MatMul", node_name(name), [x, weight])
        front = node_name(name)
        held = self._quantized(name, rows, packing, [n, columns // packing.block, packing.block * packing.bits // 8])
        numbers = {"K": columns, "N": n, "bits": packing.bits, "block_size": packing.block}
        made = self.node(
            "MatMulNBits",
            f"{front}_Q{packing.bits}",
            [x, *held],
            f"{front}/output_0",
            domain="com.microsoft",
            accuracy_level=EXACT_ACTIVATIONS,
            **numbers,
        )
        if packing.shift is None:
            return made
        parts = [self._part(each, "minima", n) for each in rows]
        minima = self._weight(f"{name}.weight_minima", [columns // packing.block, n], rows, parts, self.element)
        below = self.node("MatMul", f"{front}_minima", [self._block_sums(x, columns, packing.block), minima])
        return self.node("Add", f"{front}_whole", [made, below])

    def biased(self, name: str, x: str, tensor: str, n: int) -> str:
        """x with a bias, if the file has it."""
        if not self.has(tensor):
            return x
        bias = self.vector(f"{name}.Add.bias", [Rows(self.tensor(tensor, n))])
        return self.node("Add", f"{node_name(name)}/Add", [x, bias])

    def alternating(self, name: str, tensors: Sequence[GgufTensor], packing: Packing, count: int) -> list[str]:
        """The quants and the scales of `count` matrices one after another, made of tensors [all rows, columns] of one
        file whose rows alternate.
        """
        rows, columns = tensors[0].dims
        n, bits, block = len(tensors) * rows // count, packing.bits, packing.block
        if len(tensors) > 1 and columns // block * self._bits % (8 * WORD):
            raise UnsupportedModelError(
                f"{self.file.name}: rows of tensor {tensors[0].name} have {columns} elements; only multiples of "
                f"{2 * block} are supported: use an ONNX export of the model"
            )
        things: Sequence[tuple[Literal["quants", "scales"], str, int, int, int]] = (
            ("quants", f"Q{bits}", bits, 1, TensorProto.UINT8),
            ("scales", "scales", self._bits, block, self.element),
        )
        held = []
        for what, suffix, size, shared, kind in things:
            between = (len(tensors) - 1) * (columns // shared) * size // 8
            changes = [Unpack(each.type, what, rows, columns, size, shared, between=between) for each in tensors]
            parts = [Part(each.offset, each.length, how) for each, how in zip(tensors, changes, strict=True)]
            dims = [count, n, columns * bits // 8 if what == "quants" else columns // block]
            held.append(self._weight(f"{name}.weight_{suffix}", dims, [Rows(tensors[0])], parts, kind))
        return held

    def lookup(self, name: str, tensor: GgufTensor, ids: str, quantized: bool = False) -> str:
        """The rows of a table at some ids. A table of a type with minima becomes floats unless it is to stay
        `quantized`; then its minima are a second table.
        """
        packing = PACKED.get(tensor.type)
        rows = [Rows(tensor)]
        if packing is None or (packing.shift is not None and not quantized):
            parts = [self._part(rows[0], "values")]
            table = self._weight(f"{name}.weight", tensor.dims, rows, parts, self.element)
            return self.node("Gather", f"{node_name(name)}/Gather", [table, ids])
        # A product by the same tensor shares these buffers, but gives its weights other dimensions.
        data, scales = self._quantized(name, rows, packing, [tensor.dims[0], tensor.dims[1] * packing.bits // 8])
        found = self.node(
            "GatherBlockQuantized",
            f"{node_name(name)}/Gather",
            [data, ids, scales],
            domain="com.microsoft",
            bits=packing.bits,
            block_size=packing.block,
            gather_axis=0,
            quantize_axis=1,
        )
        return found if packing.shift is None else self._with_minima(name, found, tensor, packing.block, ids)

    def _with_minima(self, name: str, found: str, tensor: GgufTensor, block: int, ids: str) -> str:
        """Add the minima to the rows of a table that were looked up without them."""
        front, (count, columns) = node_name(name), tensor.dims
        blocks, rows = columns // block, [Rows(tensor)]
        table = self._weight(
            f"{name}.weight_minima", [count, blocks], rows, [self._part(rows[0], "minima")], self.element
        )
        minima = self.node("Gather", f"{front}/minima/Gather", [table, ids])
        apart, below = (
            self.node("Reshape", f"{front}/{part}/Reshape", [each, self.integers(0, 0, blocks, size)])
            for part, each, size in (("blocks", found, block), ("minima", minima, 1))
        )
        whole = self.node("Add", f"{front}/minima/Add", [apart, below])
        return self.node("Reshape", f"{front}/Reshape", [whole, self.integers(0, 0, columns)])

    def _quantized(self, name: str, rows: Sequence[Rows], packing: Packing, dims: Sequence[int]) -> list[str]:
        """The quants and the scales of a product."""
        n, blocks = dims[0], rows[0].tensor.dims[1] // packing.block
        quants = [self._part(each, "quants") for each in rows]
        scales = [self._part(each, "scales") for each in rows]
        return [
            self._weight(f"{name}.weight_Q{packing.bits}", dims, rows, quants, TensorProto.UINT8),
            self._weight(f"{name}.weight_scales", [n, blocks], rows, scales, self.element),
        ]

    def _block_sums(self, x: str, columns: int, block: int) -> str:
        """The sums of x over blocks of its last axis, [batch, positions, blocks]."""
        if (x, block) not in self._sums:
            apart = self.node("Reshape", f"{x}/blocks_{block}", [x, self.integers(0, 0, columns // block, block)])
            summed = self.node("ReduceSum", f"{x}/sums_{block}", [apart, self.integers(-1)], keepdims=0)
            self._sums[x, block] = summed
        return self._sums[x, block]

    def _part(self, rows: Rows, what: Literal["quants", "scales", "minima", "values"], stride: int = 0) -> Part:
        tensor = rows.tensor
        n, columns = rows.count, (*tensor.dims, 1)[1]
        index, shares = rows.share
        length = tensor.length // shares
        offset = tensor.offset + index * length
        packing = PACKED.get(tensor.type)
        shared = what in ("scales", "minima") and packing is not None
        bits = packing.bits if what == "quants" and packing is not None else self._bits
        if what == "values" and tensor.type == GgmlType.F32 and bits == 32 and not rows.halves and not stride:
            return Part(offset, length)
        block = packing.block if shared and packing is not None else 1
        shift = packing.shift or 0 if packing is not None else 0
        how = Unpack(tensor.type, what, n, columns, bits, block, rows.halves, shift, stride)
        return Part(offset, length, how)

    def _weight(self, name: str, dims: Sequence[int], rows: Sequence[Rows], parts: Sequence[Part], kind: int) -> str:
        """The name of a weight of these parts of rows in one file."""
        if any(part.made % 4 for part in parts[:-1]):
            raise UnsupportedModelError(
                f"{self.file.name}: {name} is made of tensors with an odd number of elements; use an ONNX export of "
                "the model"
            )
        location = self.locations[rows[0].tensor.shard]
        self.graph.initializer.append(made_of(name, kind, dims, location, parts))
        return name


def node_name(name: str) -> str:
    """The name of the node for a weight's name: model.layers.3.mlp.up_proj gives /model/layers.3/mlp/up_proj."""
    return "/" + re.sub(r"\.(?!\d)", "/", name)
