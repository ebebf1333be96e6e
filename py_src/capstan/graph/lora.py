"""LoRA: inputs of a graph that an adapter fills, as Olive writes them.

To a product `x W` the graph adds `x A B`, perhaps times a scale. A and B are inputs, most with an initializer that
holds where nothing is fed: without any element, or zeros, so that nothing is added. The dimension that A and B share,
the rank, is free, or fixed by the export.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from .carried import cache_pairs, state_tensors, tensor_info
from .onnx_pb2 import ModelProto, NodeProto, TensorProto, ValueInfoProto
from .weights import DTYPES
from .wiring import Wiring, copy_of, prune

if TYPE_CHECKING:
    from ..model_files.config import DecoderConfig

__all__ = ["LoraInput", "LoraSlot", "lora_fed", "lora_inputs", "with_lora_rank", "without_lora"]

WEIGHTS = {"MatMul": (1,), "Gemm": (1,), "MatMulNBits": (1, 2, 3), "FusedMatMul": (1,), "DequantizeLinear": (0, 1, 2)}
"""By operator, which inputs are weights."""
PRODUCTS = {"MatMul": (0, 1), "Gemm": (0, 1), "FusedMatMul": (0, 1), "MatMulNBits": (0, 2), "Mul": (0, 1), "Div": (0,)}
"""Inputs of an operator that make its result zeros if they are zeros, or without elements."""
SAME = ("Cast", "Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "DequantizeLinear", "Neg")
"""Operators that make zeros of zeros in their first input."""
PASSED = ("Cast", "Identity", "Mul")
"""Operators allowed between the products by A and by B."""


@dataclass(frozen=True)
class LoraInput:
    """An input that adapters fill."""

    name: str
    onnx_type: int
    dims: tuple[int | str, ...]
    """Sizes; the rank by the name that the graph gives it, "?" if it has none."""
    silent: bool
    """Whether nothing is added where no adapter fills it: its default is zeros or without elements, or it has none."""
    default: bytes = b""
    """The value without an adapter, if it is not zero and model.onnx has its bytes."""
    meets: str = ""
    """The other factor of its product, whose rank must be the same."""

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type."""
        return DTYPES[self.onnx_type][0]

    @property
    def shape(self) -> str:
        """As messages show it."""
        return f"{self.dtype} [{', '.join(map(str, self.dims))}]"

    def sizes(self, rank: int) -> tuple[int, ...]:
        """Its dimensions for that rank."""
        return tuple(size if isinstance(size, int) else rank for size in self.dims)

    def slot(self, rank: int) -> LoraSlot:
        """The tensor that fills it, for adapters of that rank."""
        return LoraSlot(self.name, self.onnx_type, self.sizes(rank))


@dataclass(frozen=True)
class LoraSlot:
    """The tensor that a session is given for an input, of adapters of one rank."""

    name: str
    onnx_type: int
    dims: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type."""
        return DTYPES[self.onnx_type][0]


def lora_inputs(model: ModelProto, decoder: DecoderConfig) -> tuple[LoraInput, ...]:
    """The inputs that LoRA adapters fill; empty for a model that was exported without them."""
    graph = model.graph
    names = decoder.inputs
    known = {names.input_ids, names.attention_mask, names.position_ids}
    known |= {pair.past for pair in cache_pairs(decoder, graph)}
    known |= {state.past for state in state_tensors(decoder, graph)}
    others = [value for value in graph.input if value.name not in known and of_bytes(value)]
    if not others:
        return ()
    wiring = Wiring(graph)
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    found = {}
    for value in others:
        default = defaults.get(value.name)
        if not is_weight(wiring, value.name):
            continue
        free = any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if default is None or free or "lora" in value.name.lower():
            found[value.name] = lora_input(value, default)
    for name, other in meetings(wiring, found):
        found[name] = replace(found[name], meets=other)
    return tuple(found.values())


def of_bytes(value: ValueInfoProto) -> bool:
    """Whether its elements have whole bytes."""
    return DTYPES.get(value.type.tensor_type.elem_type, ("", 1))[1] % 8 == 0


def is_weight(wiring: Wiring, name: str) -> bool:
    """Whether all that read a tensor, one at least, take it for weights."""
    readers = wiring.consumers.get(name, [])
    return bool(readers) and all(
        place in WEIGHTS.get(node.op_type, ())
        for node in readers
        for place, read in enumerate(node.input)
        if read == name
    )


def lora_input(value: ValueInfoProto, default: TensorProto | None) -> LoraInput:
    info = tensor_info(value)
    # A default without elements gives the rank the size 0.
    dims = tuple(size or "?" for size in info.dims)
    silent, data = (True, b"") if default is None else content(default)
    return LoraInput(value.name, value.type.tensor_type.elem_type, dims, silent, b"" if silent else data)


def content(tensor: TensorProto) -> tuple[bool, bytes]:
    """Whether a tensor is zeros or without elements, and its bytes; none of one that is elsewhere, or in fields that
    are not bytes."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return False, b""
    if tensor.float_data:
        return not any(tensor.float_data), array("f", tensor.float_data).tobytes()
    typed = (*tensor.int32_data, *tensor.int64_data, *tensor.double_data, *tensor.uint64_data)
    return not any(tensor.raw_data) and not any(typed), bytes(tensor.raw_data)


def meetings(wiring: Wiring, names: Collection[str]) -> list[tuple[str, str]]:
    """(A, B) and (B, A) of all products of two of these inputs."""
    found = []
    for second in [node for name in names for node in wiring.consumers[name] if node.op_type == "MatMul"]:
        first = wiring.producer.get(second.input[0])
        while first is not None and first.op_type in PASSED:
            first = next((wiring.producer[name] for name in first.input if name in wiring.producer), None)
        if first is not None and first.op_type == "MatMul" and first.input[1] in names and second.input[1] in names:
            found += [(first.input[1], second.input[1]), (second.input[1], first.input[1])]
    return found


def with_lora_rank(model: ModelProto, inputs: Sequence[LoraInput], rank: int) -> ModelProto:
    """The graph with these inputs for that rank, fed in every run."""
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
    """The graph with these inputs of any rank, fed in every run."""
    result = copy_of(model)
    names = {each.name for each in inputs}
    for tensor in [tensor for tensor in result.graph.initializer if tensor.name in names]:
        result.graph.initializer.remove(tensor)
    return result


def without_lora(model: ModelProto, inputs: Sequence[LoraInput]) -> ModelProto:
    """The graph where no adapter is: defaults are constants, and what they would add nothing to is left out.

    Raises UnsupportedModelError, naming the node, where a default without an effect is read in a way of its own.
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
                f"node {node.name} ({node.op_type}) reads {node.input[hit[0]]}, to which an adapter adds, and nothing "
                "adds it to a product; export the model as Olive's extract-adapters pass does"
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
    """Whether a node's results are zeros or empty, given which of its inputs (`hit`) are."""
    if node.op_type in ("Add", "Sub"):
        return len(hit) == 2
    factors = PRODUCTS.get(node.op_type, (0,) if node.op_type in SAME else ())
    return any(place in factors for place in hit)
