"""Recognises the attention of speech models in primitive operations, as Optimum exports it, and rewrites it to
MultiHeadAttention.

    q, k, v products -> Reshape -> Transpose, those of a cache after it: Concat(past, k), Concat(past, v)
    MatMul(q, k transposed) -> Add(causal mask) -> Softmax -> MatMul(v) -> Transpose -> Reshape

Older exports put rows and heads into one dimension in between, and have no mask over caches, since they were traced
with one token. Scales come before or after the separation of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CapstanError, UnsupportedModelError
from .attention_writer import tidy
from .node_writer import NodeWriter
from .onnx_pb2 import ModelProto, NodeProto
from .plain_attention import floats
from .wiring import Wiring, attribute

__all__ = ["whole_attention"]

APART, JOINED = [0, 2, 1, 3], ([0, 1, 3, 2], [0, 2, 1])
"""The permutations that put heads before positions, and that transpose keys for the product, with heads separate or in
one dimension with rows.
"""
BOTH = [0, 2, 3, 1]
Pairs = Sequence[tuple[str, str]]


class NotUnderstoodError(CapstanError):
    """Raised if attention has another node than expected."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, with the nodes that reshape and scale it."""

    name: str
    turns: list[list[int]]
    """The permutations on the path, the lowest first."""
    scale: float


@dataclass(frozen=True)
class Attention:
    query: str
    key: str
    value: str
    past: tuple[str, str] | None
    """The caches, to which keys and values are appended."""
    scale: float
    output: str
    present: tuple[str, str] | None


def whole_attention(model: ModelProto, heads: int, caches: Pairs, crosses: Pairs, filename: str) -> None:
    """Replace all attention by MultiHeadAttention, in place. For each layer `caches` has the inputs of keys and values
    that grow, `crosses` those of an encoder's keys and values. Raises UnsupportedModelError.
    """
    graph = model.graph
    reader = Reader(Wiring(graph), caches, crosses)
    try:
        found = [reader.attention(node) for node in graph.node if node.op_type == "Softmax"]
    except NotUnderstoodError as error:
        raise UnsupportedModelError(f"{filename}: {error}; use an export of Optimum") from error
    if [each.past for each in found if each.past] != list(caches):
        raise UnsupportedModelError(f"{filename}: {caches[0][0]} and others do not have one attention for each layer")
    writer = NodeWriter(graph, "/capstan/attention")
    replaced = {name for each in found for name in (each.output, *(each.present or ()))}
    for node in graph.node:
        node.output[:] = [writer.name("replaced") if name in replaced else name for name in node.output]
    for each in found:
        past = ["", "", "", *each.past] if each.past else []
        writer.add(
            "MultiHeadAttention",
            [each.query, each.key, each.value, *past],
            outputs=[each.output, *(each.present or ())],
            domain="com.microsoft",
            num_heads=heads,
            scale=each.scale,
            unidirectional=int(each.past is not None),
        )
    graph.node.extend(writer.made)
    tidy(model)
    if not any(item.domain == "com.microsoft" for item in model.opset_import):
        model.opset_import.add(domain="com.microsoft", version=1)


class Reader:
    """Reads attention around its softmax."""

    def __init__(self, wiring: Wiring, caches: Pairs, crosses: Pairs) -> None:
        self._wiring, self._caches, self._crosses = wiring, [*caches], [*crosses]

    def attention(self, softmax: NodeProto) -> Attention:
        scores, scale = self._scores(softmax)
        query, key = (self._above(name) for name in scores.input)
        product, values = self._weighted(softmax)
        value = self._above(values)
        if query.turns != [APART]:
            raise NotUnderstoodError(f"the queries of {softmax.name} are not separated by heads")
        scale *= query.scale * key.scale
        given = query.name, key.name, value.name
        output = self._joined(product)
        if (key.name, value.name) in self._crosses:
            self._require(softmax, key.turns in ([turn] for turn in JOINED) and not value.turns)
            return Attention(*given, None, scale, output, None)
        if key.turns in ([BOTH], *([turn, APART] for turn in JOINED)) and value.turns == [APART]:
            return Attention(*given, None, scale, output, None)
        self._require(softmax, key.turns in ([turn] for turn in JOINED) and not value.turns)
        (past_key, new_key), (past_value, new_value) = (self._appended(name) for name in (key.name, value.name))
        self._require(softmax, (past_key, past_value) in self._caches)
        new = [self._above(name) for name in (new_key, new_value)]
        self._require(softmax, all(each.turns == [APART] and each.scale == 1 for each in new) and value.scale == 1)
        present = key.name, value.name
        return Attention(query.name, new[0].name, new[1].name, (past_key, past_value), scale, output, present)

    def _require(self, softmax: NodeProto, holds: bool) -> None:
        if not holds:
            raise NotUnderstoodError(f"the keys and values of {softmax.name} are of an unknown kind")

    def _number(self, name: str) -> float | None:
        """A float constant of one element."""
        values = floats(self._wiring.constants.get(self._wiring.original(name)))
        return values[0] if values is not None and len(values) == 1 else None

    def _above(self, name: str) -> Tensor:
        """The tensor above nodes that reshape or scale it."""
        turns, scale = list[list[int]](), 1.0
        while (node := self._wiring.producer.get(name)) is not None:
            factor = self._factor(node)
            if factor is not None:
                place, number = factor
                scale, name = scale * number, node.input[place]
            elif node.op_type == "Transpose":
                turns.append(next(list(item.ints) for item in node.attribute if item.name == "perm"))
                name = node.input[0]
            elif node.op_type in ("Reshape", "Identity"):
                name = node.input[0]
            else:
                break
        return Tensor(name, turns, scale)

    def _factor(self, node: NodeProto) -> tuple[int, float] | None:
        """The index of the input that a node multiplies by a number, and that number."""
        if node.op_type == "Div" and (number := self._number(node.input[1])):
            return 0, 1 / number
        if node.op_type == "Mul":
            for place in (0, 1):
                if (number := self._number(node.input[1 - place])) is not None:
                    return place, number
        return None

    def _scores(self, softmax: NodeProto) -> tuple[NodeProto, float]:
        """The product of queries and keys below the mask, and its scale."""
        name, scale = softmax.input[0], 1.0
        while (node := self._wiring.producer.get(name)) is not None and node.op_type != "MatMul":
            factor = self._factor(node)
            if factor is not None:
                name, scale = node.input[factor[0]], scale * factor[1]
            elif node.op_type in ("Reshape", "Identity"):
                name = node.input[0]
            elif node.op_type == "Add":
                masks = [place for place in (0, 1) if self._is_mask(node.input[place])]
                if len(masks) != 1:
                    break
                name = node.input[1 - masks[0]]
            else:
                break
        if node is None or node.op_type != "MatMul":
            raise NotUnderstoodError(f"{softmax.name} is not over a product of queries and keys")
        return node, scale

    def _is_mask(self, name: str) -> bool:
        """Whether a tensor is computed only from lengths."""
        pending, seen = [name], {name}
        while pending:
            current = pending.pop()
            node = self._wiring.producer.get(current)
            if node is None and current in self._wiring.inputs:
                return False
            if node is not None and node.op_type != "Shape":
                pending += [source for source in node.input if source not in seen]
                seen.update(node.input)
        return True

    def _weighted(self, softmax: NodeProto) -> tuple[NodeProto, str]:
        """The product of the weights and the values, and the values. Weights that are NaN count as 0."""
        name = softmax.output[0]
        while True:
            readers = [node for node in self._wiring.consumers.get(name, []) if node.op_type != "IsNaN"]
            products = [node for node in readers if node.op_type == "MatMul" and node.input[0] == name]
            if len(products) == 1:
                return products[0], products[0].input[1]
            [reader] = readers if len(readers) == 1 else [None]
            if reader is None or reader.op_type not in ("Where", "Identity"):
                raise NotUnderstoodError(f"no product with values reads {softmax.name}")
            name = reader.output[0]

    def _appended(self, name: str) -> tuple[str, str]:
        """The cache, and the tensor that is appended to it."""
        node = self._wiring.producer.get(name)
        appends = node is not None and node.op_type == "Concat" and attribute(node, "axis", 0) in (-2, 2)
        if node is None or not appends or len(node.input) != 2:
            raise NotUnderstoodError(f"{name} is not a cache with new positions after it")
        return node.input[0], node.input[1]

    def _joined(self, product: NodeProto) -> str:
        """The rows below a product, with heads side by side."""
        name, turns = product.output[0], list[list[int]]()
        while not turns:
            node = self._only_reader(name)
            if node.op_type == "Transpose":
                turns.append(next(list(item.ints) for item in node.attribute if item.name == "perm"))
            elif node.op_type != "Reshape":
                raise NotUnderstoodError(f"{product.name} has heads that {node.name} does not put side by side")
            name = node.output[0]
        last = self._only_reader(name)
        if turns != [APART] or last.op_type != "Reshape":
            raise NotUnderstoodError(f"{product.name} has heads that are not put side by side")
        return last.output[0]

    def _only_reader(self, name: str) -> NodeProto:
        readers = self._wiring.consumers.get(name, [])
        if len(readers) != 1:
            raise NotUnderstoodError(f"{name} is read {len(readers)} times instead of once")
        return readers[0]
