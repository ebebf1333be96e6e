"""Converts the weights of a GGUF file to float32, for the CPU in a page.

    MatMulNBits(x, quants, scales) [+ MatMul(sums of x, minima)]      becomes      FusedMatMul(x, V), V [n, k]
    MatMul(x, weight)                                                 becomes      the same, V the weight transposed
    GatherBlockQuantized(quants, ids, scales) [+ Gather(minima, ids)] becomes      Gather(V, ids)

V has the values of the tensor, `d * q` or `d * q + m`, with one rounding for each operation; matrix products and tables
of one tensor share V. V and every other rearranged weight are made while a model loads
(web/src/worker/unpacked_weights.ts implements what capstan.device.reference.unpacked defines). benches/NOTES.md has the
reason: onnxruntime-web's matrix products with packed weights take 14 times as long as those with float weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..model_files.gguf.header import GgmlType
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Part, Unpack, fields_of
from .weight_inputs import WeightEntry, entry_of, external_entries, made_of
from .wide_products import FloatProducts
from .wiring import Wiring, copy_of, fresh_name

__all__ = ["UnpackedWeight", "unpacked_weights"]

UNPACKED_FILES = "capstan.unpacked"
"""The beginning of the names of data files that are made; a number follows."""


@dataclass(frozen=True)
class UnpackedWeight:
    """A weight that is made of parts of a file."""

    location: str
    """The name of its data file."""
    bytes: int
    file: str
    """The name of the GGUF file, or of its shard, that has the parts."""
    parts: tuple[Part, ...]

    def as_json(self) -> dict[str, Any]:
        """The weight in the form that web/src/worker/unpacked_weights.ts reads."""
        parts = [(part.offset, part.length, part.step, fields_of(part.change)) for part in self.parts]
        return {"location": self.location, "bytes": self.bytes, "file": self.file, "parts": parts}


def unpacked_weights(model: ModelProto) -> tuple[ModelProto, tuple[UnpackedWeight, ...]]:
    """The same model with float32 weights in place of packed ones, and these weights. A model that is not of a GGUF
    file stays unchanged.
    """
    entries = {entry.name: entry for entry in external_entries(model) if entry.parts}
    if not entries:
        return model, ()
    result = copy_of(model)
    unpacking = Unpacking(result, entries)
    for node in list(result.graph.node):
        if node.op_type in ("MatMulNBits", "MatMul"):
            unpacking.product(node)
        elif node.op_type in ("GatherBlockQuantized", "Gather"):
            unpacking.table(node)
    unpacking.products.finish()
    return result, made_files(result)


class Unpacking:
    """Replaces packed weights by values, in the nodes of one graph."""

    def __init__(self, model: ModelProto, entries: Mapping[str, WeightEntry]) -> None:
        self._graph, self._entries = model.graph, entries
        self._wiring = Wiring(model.graph)
        self.products = FloatProducts(model)
        self._values: dict[tuple[str, tuple[Part, ...]], str] = {}
        """The names of the matrices of values so far, by file and parts."""

    def product(self, node: NodeProto) -> None:
        """Let a matrix product read float32 values instead of a packed weight of the file. Matrix products with minima
        stay, and nothing reads them afterwards.
        """
        packed = self._entries.get(node.input[1])
        if packed is None or things_of(packed) not in ({"quants"}, {"values"}):
            return
        if node.op_type == "MatMulNBits":
            self._take_minima(node)
        self.products.replace(node, self._matrix(packed), self._is_half(node))

    def table(self, node: NodeProto) -> None:
        """Let a lookup read float32 values instead of a table of the file. Lookups of minima stay, and nothing reads
        them afterwards.
        """
        packed = self._entries.get(node.input[0])
        if packed is None or things_of(packed) == {"minima"}:
            return
        if node.op_type == "GatherBlockQuantized":
            self._take_minima_of_rows(node)
        ids, half = node.input[1], self._is_half(node)
        del node.input[:], node.attribute[:]
        node.op_type, node.domain = "Gather", ""
        node.input.extend([self._matrix(packed), ids])
        if half:
            self.products.narrow(node)

    def _is_half(self, node: NodeProto) -> bool:
        """Whether a node computes in float16, which the type of its scales, or else of its values, shows."""
        floats = [self._entries[name].onnx_type for name in node.input if name in self._entries]
        return TensorProto.FLOAT16 in floats

    def _matrix(self, packed: WeightEntry) -> str:
        """The name of the float32 values [n, k] of a weight of the file."""
        parts: list[Part] = []
        rows = columns = 0
        for part in packed.parts:
            how = part.change or Unpack(GgmlType.F32, "values", packed.dims[0], packed.dims[1], 32)
            assert isinstance(how, Unpack), "weights of GGUF files are unpacked"
            rows, columns = rows + how.rows, how.columns
            parts.append(replace(part, change=replace(how, what="values", bits=32, block=1, shift=0, stride=0)))
        key = packed.location, tuple(parts)
        if key not in self._values:
            self._values[key] = fresh_name(self._graph, f"{packed.name}_float")
            tensor = made_of(self._values[key], TensorProto.FLOAT, (rows, columns), packed.location, parts)
            self._graph.initializer.append(tensor)
        return self._values[key]

    def _take_minima(self, node: NodeProto) -> None:
        """Let a product write the sum with the product of minima, if there is one."""
        for reader in self._wiring.consumers.get(node.output[0], []):
            others = [self._wiring.producer.get(name) for name in reader.input if name != node.output[0]]
            products = [each.input[1] for each in others if each is not None and each.op_type == "MatMul"]
            weights = [self._entries[name] for name in products if name in self._entries]
            if reader.op_type == "Add" and [things_of(each) for each in weights] == [{"minima"}]:
                node.output[0], reader.output[0] = reader.output[0], f"{reader.output[0]}_unread"
                return

    def _take_minima_of_rows(self, node: NodeProto) -> None:
        """If each block has a minimum, let the lookup of values write their sum with the lookup of minima."""
        chain = [node]
        for kind in ("Reshape", "Add", "Reshape"):
            readers = self._wiring.consumers.get(chain[-1].output[0], [])
            if [each.op_type for each in readers] != [kind]:
                return
            chain += readers
        _, blocks, both, whole = chain
        others = [self._wiring.maker(name) for name in both.input if name != blocks.output[0]]
        makers = [self._wiring.maker(each.input[0]) for each in others if each is not None]
        weights = [self._entries[each.input[0]] for each in makers if each is not None and each.op_type == "Gather"]
        if [things_of(each) for each in weights] == [{"minima"}]:
            node.output[0], whole.output[0] = whole.output[0], f"{whole.output[0]}_unread"


def things_of(weight: WeightEntry) -> set[str]:
    """The contents of a weight of the file: quants, scales, minima or values of its tensors."""
    return {part.change.what if isinstance(part.change, Unpack) else "values" for part in weight.parts}


def made_files(model: ModelProto) -> tuple[UnpackedWeight, ...]:
    """The weights of the file that a graph reads; changes the graph in place, so that each is a separate data file."""
    made: list[UnpackedWeight] = []
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL or not (entry := entry_of(tensor)).parts:
            continue
        made.append(UnpackedWeight(f"{UNPACKED_FILES}.{len(made)}", entry.length, entry.location, entry.parts))
        del tensor.external_data[:]
        for key, value in (("location", made[-1].location), ("offset", "0"), ("length", str(entry.length))):
            tensor.external_data.add(key=key, value=value)
    return tuple(made)
