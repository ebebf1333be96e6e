"""Finds attributes and inputs of nodes that the pinned onnxruntime-web does not compute on a device.

Some kernels refuse such features at the first run, after the weights are loaded; others silently ignore them and
compute something else. `RULES` lists both for eager runs of onnxruntime-web 1.30.0;
tests/browser/test_attention_nodes.py proves each row with models of one node, on both devices. GroupQueryAttention
computes these everywhere, so they have no row: scale, do_rotary, rotary_interleaved, local_window_size (not in a
captured run, see capture.py), smooth_softmax, head_sink, attention_bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UncomputedError
from .fed_lengths import source
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import Wiring

__all__ = ["RULES", "Rule", "Uncomputed", "one_row_only", "require_computed", "uncomputed"]

ATTENTION = "GroupQueryAttention"
PAST_KEY, COS_CACHE, POSITION_IDS, Q_NORM_WEIGHT = 3, 7, 9, 14
"""Inputs of GroupQueryAttention."""
EXPERTS = "QMoE"
FC1, SCALES, FC2, FC3, ZERO_POINTS, ROUTER_WEIGHTS = 2, 3, 5, 8, (11, 12, 13), 14
"""Inputs of QMoE: weights of both products with the scales of the first, weights of a gate that is separate from fc1,
zero points of each product, weights of the experts.
"""


@dataclass(frozen=True)
class Rule:
    """A feature that nodes of one kind may have: `feature` names it for a node, or returns None if the node does not
    have it.
    """

    op_type: str
    asked: Callable[[Wiring, NodeProto, str], str | None]
    """Given the graph, the node and the name of the position ids."""
    not_on: dict[str, str]
    """The behaviour by device: "ignores" or "refuses"."""


@dataclass(frozen=True)
class Uncomputed:
    """A node, the feature that it needs, and onnxruntime-web's behaviour on the device."""

    node: str
    op_type: str
    asked: str
    verb: str

    def __str__(self) -> str:
        return f"node {self.node} ({self.op_type}): onnxruntime-web {self.verb} {self.asked}"


def other_than(name: str, neutral: float, integer: bool = True) -> Callable[[Wiring, NodeProto, str], str | None]:
    """A function for a Rule: it gives an attribute's name and value unless the value is `neutral`, at which it changes
    nothing.
    """

    def asked(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
        value = next((item.i if integer else item.f for item in node.attribute if item.name == name), neutral)
        return None if value == neutral else f"{name}={value:g}"

    return asked


def given(node: NodeProto, place: int) -> str:
    """The name of an input, "" if it is left out."""
    return node.input[place] if place < len(node.input) else ""


def own_positions(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    """The name of the input of positions, unless Capstan feeds it: fed positions equal those that attention takes from
    the lengths.
    """
    name = given(node, POSITION_IDS)
    return f"its input {name} (position_ids)" if name and source(wiring, name) != position_ids else None


def norms(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    name = given(node, Q_NORM_WEIGHT)
    return f"its input {name} (q_norm_weight)" if name else None


def norms_without_rotary(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    rotary = any(item.name == "do_rotary" and item.i for item in node.attribute)
    return None if rotary or not norms(wiring, node, position_ids) else "norms of q and k without do_rotary"


def last_dim(wiring: Wiring, name: str) -> int:
    """The size of a tensor's last axis; 0 if unknown."""
    constant, declared = wiring.constants.get(name), wiring.declared.get(name)
    if constant is not None:
        return constant.dims[-1] if constant.dims else 0
    dims = declared.type.tensor_type.shape.dim if declared is not None else ()
    return dims[-1].dim_value if dims else 0


def odd_heads(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    """Whether heads, or their rotated parts, have a size that the operator refuses."""
    rotary = any(item.name == "do_rotary" and item.i for item in node.attribute)
    size = last_dim(wiring, given(node, PAST_KEY))
    turned = 2 * last_dim(wiring, given(node, COS_CACHE)) if rotary else 0
    if size % 8:
        return f"heads of {size} elements (multiples of 8 are computed)"
    if rotary and size % 16:
        return f"rotary embedding of heads of {size} elements (multiples of 16 are computed)"
    if turned % 16:
        return f"rotary embedding of {turned} elements of a head (multiples of 16 are computed)"
    return None


def input_given(name: str, *places: int) -> Callable[[Wiring, NodeProto, str], str | None]:
    """A function for a Rule: it gives the name of the first optional input at these places, if the node has one."""

    def asked(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
        found = [given(node, place) for place in places if given(node, place)]
        return f"its input {found[0]} ({name})" if found else None

    return asked


def activation(node: NodeProto) -> str:
    return next((item.s.decode() for item in node.attribute if item.name == "activation_type"), "relu")


def other_than_swiglu(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    return None if activation(node) == "swiglu" else f"activation_type={activation(node)}"


def geglu(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    return f"activation_type={activation(node)}" if activation(node) == "geglu" else None


def expert_rows(wiring: Wiring, node: NodeProto) -> tuple[int, list[int]]:
    """The block size of QMoE, and the elements of a row of each product; no rows for weights that are not constants."""
    integers = {item.name: item.i for item in node.attribute}
    in_byte = 8 // integers.get("expert_weight_bits", 4)
    weights = [wiring.constants.get(given(node, place)) for place in (FC1, FC2)]
    rows = [in_byte * weight.dims[-1] for weight in weights if weight is not None and weight.dims]
    return integers.get("block_size", 0), rows if len(rows) == len(weights) else []


def one_block_of_few(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    """Whether the first product has one block a row and the second more, which onnxruntime-web mistakes for one scale a
    row.
    """
    block, rows = expert_rows(wiring, node)
    if not rows or not rows[0] <= block < rows[1]:
        return None
    sizes = f"rows of {rows[0]} and {rows[1]} elements"
    return f"block_size={block} for {sizes} (a qmoe_block_size below {rows[0]} is computed)"


def part_of_block(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    """Whether a row ends within a block: the row's weights end there, but the kernels continue at the next block."""
    block, rows = expert_rows(wiring, node)
    found = next((row for row in rows if block and row % block), None)
    return None if found is None else f"that rows of {found} elements are not whole blocks (block_size={block})"


def rounded_activations(wiring: Wiring, node: NodeProto, position_ids: str) -> str | None:
    """Whether float32 activations of a product are rounded to int8. ORT rounds in each product of QMoE on GPUs with
    subgroups, as if the node allowed it (accuracy_level 4), if the sizes suit its kernel.
    """
    block, rows = expert_rows(wiring, node)
    scales = wiring.constants.get(given(node, SCALES))
    if scales is None or scales.data_type != TensorProto.FLOAT or block % 32:
        return None
    # Each product's rows are the other's columns; the first product also has a gate.
    outputs = (2 * rows[1], rows[0]) if rows else ()
    found = next((row for row, wide in zip(rows, outputs, strict=True) if row % 128 == 0 and wide % 16 == 0), None)
    if found is None:
        return None
    sizes = f"rows of {found} elements in blocks of {block or found}"
    return (
        f"float32 activations, which it rounds to int8 in {sizes} (rows that are not a multiple of 128, blocks of 16 "
        "and float16 are computed exactly)"
    )


RULES = (
    Rule(ATTENTION, other_than("softcap", 0.0, integer=False), {"webgpu": "ignores"}),
    Rule(ATTENTION, own_positions, {"webgpu": "ignores"}),
    Rule(ATTENTION, other_than("causal", 1), {"webgpu": "refuses"}),
    Rule(ATTENTION, other_than("qk_output", 0), {"webgpu": "refuses"}),
    Rule(ATTENTION, other_than("sliding_window_cache", 0), {"webgpu": "refuses"}),
    Rule(ATTENTION, norms_without_rotary, {"webgpu": "refuses"}),
    Rule(ATTENTION, norms, {"wasm": "refuses"}),
    Rule(ATTENTION, odd_heads, {"webgpu": "refuses", "wasm": "refuses"}),
    Rule("CausalConvWithState", other_than("state_window", 0), {"webgpu": "refuses", "wasm": "refuses"}),
    Rule("LinearAttention", other_than("state_window", 0), {"webgpu": "refuses", "wasm": "refuses"}),
    Rule(EXPERTS, input_given("fc3_experts_weights", FC3), {"webgpu": "refuses", "wasm": "refuses"}),
    Rule(EXPERTS, input_given("zero points", *ZERO_POINTS), {"webgpu": "refuses"}),
    Rule(EXPERTS, input_given("router_weights", ROUTER_WEIGHTS), {"webgpu": "refuses"}),
    Rule(EXPERTS, other_than_swiglu, {"webgpu": "refuses"}),
    Rule(EXPERTS, one_block_of_few, {"webgpu": "refuses", "wasm": "refuses"}),
    Rule(EXPERTS, part_of_block, {"webgpu": "ignores"}),
    Rule(EXPERTS, rounded_activations, {"webgpu": "ignores"}),
    Rule(EXPERTS, geglu, {"wasm": "refuses"}),
)


def uncomputed(model: ModelProto, device: str, position_ids: str = "position_ids") -> list[Uncomputed]:
    """The features of the graph's nodes that 'webgpu' or 'wasm' does not compute, in graph order; empty if none are
    known.
    """
    rules: dict[str, list[Rule]] = {}
    for rule in RULES:
        if device in rule.not_on:
            rules.setdefault(rule.op_type, []).append(rule)
    wiring = Wiring(model.graph)
    found = []
    for node in model.graph.node:
        for rule in rules.get(node.op_type, ()):
            asked = rule.asked(wiring, node, position_ids)
            if asked is not None:
                name = node.name or "/".join(node.output)
                found.append(Uncomputed(name, node.op_type, asked, f"{rule.not_on[device]} on {device}"))
    return found


def one_row_only(model: ModelProto) -> str:
    """The reason why a run on WebGPU must have only one token; empty if it may have any number.

    onnxruntime-web's QMoE has a kernel for one row, and another for several rows that has a data race: one workgroup
    sets the experts' row counts to zero while others already count, so that rows are lost.
    """
    node = next((node for node in model.graph.node if node.op_type == EXPERTS), None)
    if node is None:
        return ""
    name = node.name or "/".join(node.output)
    return f"node {name} ({EXPERTS}): onnxruntime-web loses rows of runs of several tokens"


def require_computed(model: ModelProto, device: str, position_ids: str = "position_ids") -> None:
    """Raise UncomputedError, naming the first node, if the graph needs a feature that the device does not compute."""
    found = uncomputed(model, device, position_ids)
    if not found:
        return
    other = "wasm" if device == "webgpu" else "webgpu"
    elsewhere = not uncomputed(model, other, position_ids)
    remedy = f"use device={other!r} for it" if elsewhere else "export the model without it"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    raise UncomputedError(f"{found[0]}{more}; {remedy}")
