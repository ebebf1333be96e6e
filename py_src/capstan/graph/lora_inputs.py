"""Finds the inputs of a graph that LoRA adapters fill, as Olive writes them.

To a matrix product `x W` the graph adds `x A B`, perhaps times a scale. A and B are inputs, usually with an initializer
as the default. The default has no elements or only zeros, so that nothing is added, or it has another adapter's values.
The dimension that A and B share is the rank. It is free, or fixed by the export.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import ModelFileError, UnsupportedModelError
from .carried import cache_pairs, cross_names, state_tensors, tensor_info
from .onnx_pb2 import ModelProto, NodeProto, TensorProto, ValueInfoProto
from .weight_inputs import DTYPES, WeightEntry, known_external_entries
from .wiring import Wiring, copy_of, prune

if TYPE_CHECKING:
    from ..model_files.genai_config import DecoderConfig

__all__ = [
    "LoraInput",
    "LoraSlot",
    "lora_defaults",
    "lora_fed",
    "lora_inputs",
    "other_defaults",
    "with_lora_rank",
    "without_lora",
]

WEIGHTS = {"MatMul": (1,), "Gemm": (1,), "MatMulNBits": (1, 2, 3), "FusedMatMul": (1,), "DequantizeLinear": (0, 1, 2)}
"""By operator, the inputs that are weights."""
PRODUCTS = {"MatMul": (0, 1), "Gemm": (0, 1), "FusedMatMul": (0, 1), "MatMulNBits": (0, 2), "Mul": (0, 1), "Div": (0,)}
"""Inputs of an operator that make its result zeros if they are zeros, or without elements."""
SAME = ("Cast", "Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "DequantizeLinear", "Neg")
"""Operators that turn zeros in their first input into zeros."""
PASSED = ("Cast", "Identity", "Mul")
"""Operators allowed between the products by A and by B."""
TYPED: dict[int, tuple[str, str]] = {
    TensorProto.FLOAT: ("float_data", "f"),
    TensorProto.INT64: ("int64_data", "q"),
    TensorProto.UINT64: ("uint64_data", "Q"),
    TensorProto.UINT32: ("uint64_data", "I"),
    TensorProto.INT32: ("int32_data", "i"),
    TensorProto.INT16: ("int32_data", "h"),
    TensorProto.INT8: ("int32_data", "b"),
    TensorProto.UINT16: ("int32_data", "H"),
    TensorProto.UINT8: ("int32_data", "B"),
    TensorProto.BOOL: ("int32_data", "B"),
    TensorProto.FLOAT16: ("int32_data", "H"),
}
"""By element type, the field that holds a tensor's elements if there are no raw bytes, and their format."""
MOST_DEFAULT_BYTES = 1 << 30
"""The limit of the total size of defaults in data files: Python's memory holds them, like adapter files."""


@dataclass(frozen=True)
class LoraInput:
    """An input that adapters fill."""

    name: str
    onnx_type: int
    dims: tuple[int | str, ...]
    """Sizes; the rank is the graph's name for it, or "?"."""
    silent: bool
    """Whether nothing is added without an adapter: the default has no elements or only zeros, or there is none."""
    default: bytes = b""
    """The value without an adapter, unless it is zeros."""
    held: int = 0
    """The rank of its default; 0 without elements, without a default, and if the rank is not free."""
    meets: str = ""
    """The other factor of its product, whose rank must be the same."""

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type."""
        return DTYPES[self.onnx_type][0]

    @property
    def shape(self) -> str:
        """The shape in the form for messages."""
        return f"{self.dtype} [{', '.join(map(str, self.dims))}]"

    def sizes(self, rank: int) -> tuple[int, ...]:
        """The input's dimensions for adapters of that rank."""
        return tuple(size if isinstance(size, int) else rank for size in self.dims)

    def slot(self, rank: int) -> LoraSlot:
        """The tensor that fills the input, for adapters of that rank."""
        return LoraSlot(self.name, self.onnx_type, self.sizes(rank))


@dataclass(frozen=True)
class LoraSlot:
    """The tensor that a session binds to an input, for adapters of one rank."""

    name: str
    onnx_type: int
    dims: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type."""
        return DTYPES[self.onnx_type][0]


def lora_inputs(
    model: ModelProto, decoder: DecoderConfig, given: Mapping[str, bytes] | None = None
) -> tuple[LoraInput, ...]:
    """The inputs that LoRA adapters fill; empty for a model that was exported without them. `given` are the bytes of
    the defaults that `lora_defaults` lists; without them these defaults are unknown.

    In older exports, which list all weights as inputs, weights are also inputs with a default and without a free size.
    Such inputs count if two of them are multiplied one after the other, like A and B, or if "lora" is in their names.

    Raises ModelFileError for a default whose shape differs from its input's.
    """
    graph = model.graph
    others = [value for value in unfed(model, decoder) if of_bytes(value)]
    if not others:
        return ()
    wiring = Wiring(graph)
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    weights = {value.name: value for value in others if is_weight(wiring, value.name)}
    pairs = meetings(wiring, weights)
    factors = {name for pair in pairs for name in pair}
    found = {}
    for name, value in weights.items():
        default = defaults.get(name)
        free = any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if default is None or free or name in factors or "lora" in name.lower():
            found[name] = lora_input(value, default, given or {})
    for name, other in pairs:
        found[name] = replace(found[name], meets=other)
    return tuple(found.values())


def unfed(model: ModelProto, decoder: DecoderConfig) -> list[ValueInfoProto]:
    """The inputs other than those for tokens, positions, caches, states and an encoder's outputs."""
    graph, names = model.graph, decoder.inputs
    known = {names.input_ids, names.attention_mask, names.position_ids}
    known |= {pair.past for pair in cache_pairs(decoder, graph)}
    known |= {state.past for state in state_tensors(decoder, graph)}
    known |= {*cross_names(decoder.cross, decoder.num_hidden_layers)}
    return [value for value in graph.input if value.name not in known]


def lora_defaults(model: ModelProto, decoder: DecoderConfig) -> list[WeightEntry]:
    """The defaults of LoRA inputs that are in a data file.

    Raises UnsupportedModelError if they are too large to be read.
    """
    external = {entry.name: entry for entry in known_external_entries(model)}
    found = [external[each.name] for each in lora_inputs(model, decoder) if each.name in external]
    total = sum(entry.length for entry in found)
    if total > MOST_DEFAULT_BYTES:
        largest = max(found, key=lambda entry: entry.length)
        raise UnsupportedModelError(
            f"the defaults of the inputs for LoRA adapters have {total} bytes, the largest is {largest.name} with "
            f"{largest.length}; at most {MOST_DEFAULT_BYTES} bytes are read: export the model with defaults of rank 0"
        )
    return found


def other_defaults(model: ModelProto, decoder: DecoderConfig, inputs: Sequence[LoraInput]) -> tuple[str, ...]:
    """The inputs with a default that adapters do not fill."""
    taken = {each.name for each in inputs}
    defaults = {tensor.name for tensor in model.graph.initializer}
    return tuple(each.name for each in unfed(model, decoder) if each.name in defaults and each.name not in taken)


def of_bytes(value: ValueInfoProto) -> bool:
    """Whether a tensor's elements have whole bytes."""
    return DTYPES.get(value.type.tensor_type.elem_type, ("", 1))[1] % 8 == 0


def is_weight(wiring: Wiring, name: str) -> bool:
    """Whether a tensor has readers and all of them use it as weights."""
    readers = wiring.consumers.get(name, [])
    return bool(readers) and all(
        place in WEIGHTS.get(node.op_type, ())
        for node in readers
        for place, read in enumerate(node.input)
        if read == name
    )


def lora_input(value: ValueInfoProto, default: TensorProto | None, given: Mapping[str, bytes]) -> LoraInput:
    info = tensor_info(value)
    # A default without elements gives the rank the size 0.
    dims = tuple(size or "?" for size in info.dims)
    found = LoraInput(value.name, value.type.tensor_type.elem_type, dims, silent=True)
    if default is None:
        return found
    held = {size for size, wanted in zip(default.dims, dims, strict=False) if isinstance(wanted, str)}
    rank = max(held, default=0)
    if len(held) > 1 or found.sizes(rank) != tuple(default.dims) or default.data_type != found.onnx_type:
        raise ModelFileError(
            f"input {found.name} is {found.shape}, but its default is "
            f"{DTYPES.get(default.data_type, ('another type',))[0]} {list(default.dims)}; export the model again"
        )
    silent, data = content(default, given)
    return replace(found, silent=silent, default=b"" if silent else data, held=rank)


def content(tensor: TensorProto, given: Mapping[str, bytes]) -> tuple[bool, bytes]:
    """Whether a tensor is zeros or without elements, and its bytes; no bytes if it is in a data file and not in
    `given`.
    """
    if not math.prod(tensor.dims):
        return True, b""
    if tensor.data_location == TensorProto.EXTERNAL:
        data = given.get(tensor.name, b"")
    elif tensor.raw_data:
        data = bytes(tensor.raw_data)
    else:
        field, code = TYPED[tensor.data_type]
        data = array(code, getattr(tensor, field)).tobytes()
    return bool(data) and data.count(0) == len(data), data


def meetings(wiring: Wiring, names: Collection[str]) -> list[tuple[str, str]]:
    """The pairs (A, B) and (B, A) of all matrix products of two of these inputs."""
    found = []
    for second in [node for name in names for node in wiring.consumers[name] if node.op_type == "MatMul"]:
        first = wiring.producer.get(second.input[0])
        while first is not None and first.op_type in PASSED:
            made = [name for name in first.input if name not in wiring.constants]
            first = wiring.producer.get(made[0]) if len(made) == 1 else None
        if first is not None and first.op_type == "MatMul" and first.input[1] in names and second.input[1] in names:
            found += [(first.input[1], second.input[1]), (second.input[1], first.input[1])]
    return found


def with_lora_rank(model: ModelProto, inputs: Sequence[LoraInput], rank: int) -> ModelProto:
    """The graph with these inputs for adapters of `rank`; every run feeds them."""
    result = lora_fed(model, inputs)
    graph = result.graph
    names = {each.name: each for each in inputs}
    symbols = {size for each in inputs for size in each.dims if isinstance(size, str)} - {"?"}
    for value in graph.input:
        if value.name in names:
            for dim, size in zip(value.type.tensor_type.shape.dim, names[value.name].sizes(rank), strict=True):
                dim.Clear()
                dim.dim_value = size
    for value in [
        value for value in graph.value_info if symbols & {dim.dim_param for dim in value.type.tensor_type.shape.dim}
    ]:
        graph.value_info.remove(value)
    return result


def lora_fed(model: ModelProto, inputs: Sequence[LoraInput]) -> ModelProto:
    """The graph with these inputs for adapters of any rank; every run feeds them."""
    result = copy_of(model)
    names = {each.name for each in inputs}
    for tensor in [tensor for tensor in result.graph.initializer if tensor.name in names]:
        result.graph.initializer.remove(tensor)
    return result


def without_lora(model: ModelProto, inputs: Sequence[LoraInput]) -> ModelProto:
    """The graph without adapters: defaults are constants, and nodes that would add nothing are removed.

    Raises UnsupportedModelError, naming the node, if an input without an effect has a reader of an unknown kind.
    """
    result = copy_of(model)
    graph = result.graph
    zeros = {each.name for each in inputs if each.silent}
    same: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    dead: list[NodeProto] = []
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        hit = [place for place, name in enumerate(node.input) if name in zeros]
        if not hit:
            continue
        if makes_zeros(node, hit):
            zeros.update(node.output)
        elif node.op_type == "Add" or (node.op_type == "Sub" and hit == [1]):
            other = node.input[1 - hit[0]]
            if node.output[0] in outputs:
                node.op_type = "Identity"
                node.input[:] = [other]
                continue
            same[node.output[0]] = other
        else:
            raise UnsupportedModelError(
                f"node {node.name} ({node.op_type}) reads {node.input[hit[0]]}, an input for adapters, but does not "
                "add it to a product; export the model with Olive's extract-adapters pass"
            )
        dead.append(node)
    for node in dead:
        graph.node.remove(node)
    prune(graph)
    names = {each.name for each in inputs}
    for value in [value for value in graph.input if value.name in names]:
        graph.input.remove(value)
    made = {name for node in graph.node for name in node.output}
    for value in [value for value in graph.value_info if value.name not in made]:
        graph.value_info.remove(value)
    return result


def makes_zeros(node: NodeProto, hit: Sequence[int]) -> bool:
    """Whether zeros or empty tensors in the inputs `hit` make a node's results zeros or empty."""
    if node.op_type in ("Add", "Sub"):
        return len(hit) == 2
    factors = PRODUCTS.get(node.op_type, (0,) if node.op_type in SAME else ())
    return any(place in factors for place in hit)
