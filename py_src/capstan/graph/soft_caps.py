"""Rewrites attention with a soft cap on its scores, or over another layer's caches, to operators that onnxruntime-web
computes.

Its GroupQueryAttention on WebGPU ignores the cap, and the window of a node that writes no caches; on the CPU such a
node reads foreign memory (1.30; a native 1.30 crashes, 1.31 is right). The rewrite keeps the node without the cap, so
that it writes the caches, and computes its result separately from the same q and the caches' first
`total_sequence_length` positions:

    q -> (Slice, RotaryEmbedding) -> Mul by scale / cap -> [kv heads, group, tokens, head]
    present keys -> Slice, Transpose -> MatMul -> Tanh -> Mul by cap -> Add (-inf where a position is out of sight)
    present values -> Slice, Transpose -> MatMul after Softmax -> the node's result

Without a cap there is no Tanh, and no product with the cap. A node that writes no caches is removed. Scores are
materialised as [heads, tokens, total length], which the estimate of activations includes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .node_writer import NodeWriter, place_of, take_attribute
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import attribute, copy_of, fresh_name, value_info

__all__ = ["element_of", "has_soft_caps", "shared_caches_apart", "soft_caps_apart"]

ATTENTION = "GroupQueryAttention"
QUERY, KEY, PAST_KEY, SEQLENS_K, TOTAL_LENGTH, COS, SIN, POSITION_IDS = 0, 1, 3, 5, 6, 7, 8, 9
TAKEN_OVER = {"num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "do_rotary", "rotary_interleaved"}
NEUTRAL = {"smooth_softmax": (0, -1), "causal": (1,), "qk_output": (0,), "sliding_window_cache": (0,)}
"""Further attributes, with the values at which they change nothing."""
LEAST: dict[int, float] = {TensorProto.FLOAT: -3e38, TensorProto.FLOAT16: -65504.0}
"""The number that masks a position, by element type."""
TOKENS: int | str = "sequence_length"
POSITIONS = "total_sequence_length"


def soft_caps_apart(model: ModelProto, head_sizes: Mapping[str, int]) -> ModelProto:
    """Compute every GroupQueryAttention that has a soft cap, or a window over another node's caches, by other
    operators, if besides the cap it has only a scale, a window and rotary embedding of whole heads; others stay
    unchanged. `head_sizes` are by the input that reads the cache.
    """

    def left_out(node: NodeProto, shares: bool) -> bool:
        return bool(real(node, "softcap")) or (shares and attribute(node, "local_window_size", -1) > 0)

    return attention_apart(model, head_sizes, left_out)


def shared_caches_apart(model: ModelProto, head_sizes: Mapping[str, int]) -> ModelProto:
    """Compute every GroupQueryAttention over another node's caches by other operators."""
    return attention_apart(model, head_sizes, lambda node, shares: shares)


def attention_apart(
    model: ModelProto, head_sizes: Mapping[str, int], asks: Callable[[NodeProto, bool], bool]
) -> ModelProto:
    """Compute a GroupQueryAttention by other operators if `asks(node, shares)` is true; `shares` is whether the node
    reads another node's caches.
    """
    attentions = [node for node in model.graph.node[:] if node.op_type == ATTENTION and len(node.input) > PAST_KEY]
    written = {node.output[1]: node.input[PAST_KEY] for node in attentions if len(node.output) > 1}

    def shares(node: NodeProto) -> bool:
        return node.input[PAST_KEY] in written and len(node.output) == 1

    if not any(asks(node, shares(node)) for node in attentions):
        return model
    result = copy_of(model)
    for node in [node for node in result.graph.node if node.op_type == ATTENTION and len(node.input) > PAST_KEY]:
        if not asks(node, shares(node)):
            continue
        past = written.get(node.input[PAST_KEY], node.input[PAST_KEY])
        element, head_size = element_of(result, past), head_sizes.get(past, 0)
        if element in LEAST and head_size and taken_over(result, node, head_size, shares(node)):
            writer = NodeWriter(result.graph, f"{node.name}/capped")
            Apart(result, node, element, head_size, writer, shares(node)).replace()
    return result


def has_soft_caps(model: ModelProto) -> bool:
    """Whether any attention has a soft cap."""
    return any(node.op_type == ATTENTION and real(node, "softcap") for node in model.graph.node[:])


def real(node: NodeProto, name: str) -> float:
    return next((item.f for item in node.attribute if item.name == name), 0.0)


def element_of(model: ModelProto, name: str) -> int:
    """The type of an attention's caches from the input that reads its keys; UNDEFINED if the graph does not give it."""
    tensors = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return int(tensors.get(name, inputs.get(name, TensorProto.UNDEFINED)))


def taken_over(model: ModelProto, node: NodeProto, head_size: int, shares: bool) -> bool:
    """Whether the rewrite covers all attributes and inputs of the node."""
    for item in node.attribute:
        if item.name not in TAKEN_OVER and item.i not in NEUTRAL.get(item.name, ()):
            return False
    if any(node.input[POSITION_IDS + 1 :]) or (len(node.output) < 3 and not shares):
        return False
    if not attribute(node, "do_rotary", 0):
        return True
    constants = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    described = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.value_info)
    }
    rotated = (described | constants).get(node.input[COS]) or [0]
    return 2 * rotated[-1] == head_size


@dataclass
class Apart:
    """Makes the nodes of one attention."""

    model: ModelProto
    node: NodeProto
    element: int
    head: int
    writer: NodeWriter
    shares: bool
    """Whether another node has written the caches."""

    @property
    def positions(self) -> int | str:
        """The name of the total length's dimension: onnxruntime assumes one size for a name, and sliding caches have
        other lengths.
        """
        return f"{POSITIONS} of {self.node.input[TOTAL_LENGTH]}"

    def replace(self) -> None:
        graph, node = self.model.graph, self.node
        heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
        head, group = self.head, heads // kv_heads
        cap, scale = real(node, "softcap"), real(node, "scale") or head**-0.5
        result, node.output[0] = node.output[0], fresh_name(graph, f"{node.name}/uncapped")
        take_attribute(node, "softcap")

        tokens = self.tokens()
        total = self.add("Reshape", [node.input[TOTAL_LENGTH], self.writer.ints([1], "one")], "total")
        query = node.input[QUERY]
        if not (len(node.input) > KEY and node.input[KEY]):
            query = self.sliced(query, "query", 0, heads * head, 2)
        if attribute(node, "do_rotary", 0):
            query = self.rotated(query, tokens, heads)
        strength = self.number("strength", scale / (cap or 1))
        query = self.add("Mul", [query, strength], "strong", [1, TOKENS, heads * head])
        by_head = self.writer.ints([-1, heads, head], "by head")
        query = self.add("Reshape", [query, by_head], "by_head", [TOKENS, heads, head])
        query = self.add("Transpose", [query], "heads_first", [heads, TOKENS, head], perm=[1, 0, 2])
        grouped = self.writer.ints([kv_heads, group, -1, head], "grouped")
        query = self.add("Reshape", [query, grouped], "grouped_query", [kv_heads, group, TOKENS, head])

        keys, values = (self.cached(place, total, kv_heads, head) for place in (1, 2))
        keys = self.add("Transpose", [keys], "keys", [kv_heads, 1, head, self.positions], perm=[1, 0, 3, 2])
        values = self.add("Transpose", [values], "values", [kv_heads, 1, self.positions, head], perm=[1, 0, 2, 3])
        shape = [kv_heads, group, TOKENS, self.positions]
        scores = self.add("MatMul", [query, keys], "scores", shape)
        if cap:
            scores = self.add("Tanh", [scores], "tanh", shape)
            scores = self.add("Mul", [scores, self.number("cap", cap)], "capped", shape)
        scores = self.add("Add", [scores, self.hidden(tokens)], "seen", shape)
        weights = self.add("Softmax", [scores], "weights", shape, axis=-1)
        attended = self.add("MatMul", [weights, values], "attended", [kv_heads, group, TOKENS, head])
        rows = self.writer.ints([heads, -1, head], "rows")
        attended = self.add("Reshape", [attended, rows], "by_row", [heads, TOKENS, head])
        attended = self.add("Transpose", [attended], "tokens_first", [TOKENS, heads, head], perm=[1, 0, 2])
        whole = self.writer.ints([1, -1, heads * head], "whole")
        self.writer.add("Reshape", [attended, whole], "result", outputs=[result])
        place = place_of(graph, node) + 1
        self.writer.insert(place)
        if self.shares:
            del graph.node[place - 1]

    def add(self, op: str, inputs: Iterable[str], part: str, shape: Iterable[int | str] = (), **attributes: Any) -> str:
        """Add a node; with `shape` its result is declared, in the element type."""
        domain = "com.microsoft" if op == "RotaryEmbedding" else ""
        output = self.writer.add(op, inputs, part, domain=domain, **attributes)
        if shape:
            self.model.graph.value_info.append(value_info(output, self.element, shape))
        return output

    def number(self, part: str, value: float) -> str:
        """A scalar of the element type."""
        return self.writer.numbers(self.element, [value], part, dims=())

    def int32(self, part: str, value: int, *, scalar: bool = False) -> str:
        return self.writer.numbers(TensorProto.INT32, [value], part, dims=() if scalar else None)

    def tokens(self) -> str:
        """Tokens of the run: int32 [1]."""
        shape = self.add("Shape", [self.node.input[QUERY]], "shape")
        size = self.add("Slice", [shape, self.writer.ints([1], "from"), self.writer.ints([2], "to")], "tokens_64")
        return self.add("Cast", [size], "tokens", to=TensorProto.INT32)

    def sliced(self, name: str, part: str, start: int, end: int, axis: int) -> str:
        bounds = [self.writer.ints([value], f"{part} {bound}") for bound, value in (("from", start), ("to", end))]
        shape = [1, TOKENS, end - start]
        return self.add("Slice", [name, *bounds, self.writer.ints([axis], f"{part} axis")], part, shape)

    def rotated(self, query: str, tokens: str, heads: int) -> str:
        """The query, rotated at the positions of the run; the first of these is total length - tokens."""
        past = self.add("Sub", [self.node.input[SEQLENS_K], tokens], "past_less_one")
        first = self.add("Add", [past, self.int32("next", 1)], "first_32")
        first = self.add("Cast", [first], "first", to=TensorProto.INT64)
        inputs = [query, first, self.node.input[COS], self.node.input[SIN]]
        interleaved = attribute(self.node, "rotary_interleaved", 0)
        shape = [1, TOKENS, heads * self.head]
        return self.add("RotaryEmbedding", inputs, "rotated", shape, num_heads=heads, interleaved=interleaved)

    def cached(self, place: int, total: str, kv_heads: int, head: int) -> str:
        """The positions of a cache that are valid after the run."""
        part = "key" if place == 1 else "value"
        start, axis = self.int32(f"{part} from", 0), self.int32(f"{part} axis", 2)
        shape = [1, kv_heads, self.positions, head]
        cache = self.node.input[PAST_KEY + place - 1] if self.shares else self.node.output[place]
        return self.add("Slice", [cache, start, total, axis], f"{part}s_there", shape)

    def hidden(self, tokens: str) -> str:
        """The mask that is added to scores: the smallest number at masked positions, 0 elsewhere."""
        zero, one = (self.int32(part, value, scalar=True) for part, value in (("zero", 0), ("step", 1)))
        scalar = self.writer.ints([], "scalar")
        total = self.add("Reshape", [self.node.input[TOTAL_LENGTH], scalar], "total_scalar")
        count = self.add("Reshape", [tokens, scalar], "tokens_scalar")
        keys = self.add("Range", [zero, total, one], "keys_at")
        queries = self.add("Range", [self.add("Sub", [total, count], "past"), total, one], "queries_at")
        queries = self.add("Unsqueeze", [queries, self.writer.ints([1], "last")], "queries_down")
        back = self.add("Sub", [queries, keys], "back")
        seen = self.add("GreaterOrEqual", [back, zero], "not_later")
        window = attribute(self.node, "local_window_size", -1)
        if window > 0:
            near = self.add("Less", [back, self.int32("window", window, scalar=True)], "near")
            seen = self.add("And", [seen, near], "in_sight")
        inputs = [seen, self.number("nothing", 0.0), self.number("least", LEAST[self.element])]
        return self.add("Where", inputs, "hidden", [TOKENS, self.positions])
