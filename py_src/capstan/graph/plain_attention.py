"""Recognises attention in primitive operations over a cache that grows, as Optimum exports it, and rewrites it to
GroupQueryAttention.

    q, k, v products -> Reshape, Transpose -> rotary embedding of q and k
    Concat(past, k), Concat(past, v) -> repeated for the query heads
    MatMul(q, k transposed), scaled -> Add(causal mask) -> Softmax -> MatMul(v) -> Transpose, Reshape

Optimizers of onnxruntime and older model builders write one MultiHeadAttention over such a cache instead, which is also
recognised.

Every step is checked: the constants that scale, the halves that are rotated, the frequencies with the position ids, and
that the mask is only causal. A graph with anything else in its attention stays unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

from ..errors import CapstanError
from .attention_writer import LINEAR, Attention, Rotary, still, write
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import SAME_VALUES, Wiring, attribute, copy_of, integers

__all__ = ["NotUnderstoodError", "Reader", "floats", "group_query_attention"]

LEAST_OPSET = 13
"""The first operator set whose ReduceSum takes its axes as an input."""
FLOATS: dict[int, tuple[str, int]] = {TensorProto.FLOAT: ("f", 4), TensorProto.FLOAT16: ("e", 2)}
LARGEST_INDEX = 2**31 - 1
WHOLE, WHOLE_INPUTS = "MultiHeadAttention", 8
"""The operator that is all of attention, and the number of its inputs up to its caches."""
MASK_NUMBERS = 4
"""Integers up to this one occur in a causal mask as axes, ranks and steps; a window's length is larger."""
MASK_OPS = set(
    "Add And Cast Concat Constant ConstantOfShape Equal Expand Gather Greater GreaterOrEqual Identity Less "  # noqa: SIM905
    "LessOrEqual Mul Not Or Range Reshape ScatterND Shape Slice Squeeze Sub Trilu Unsqueeze Where".split()
)
CAUSAL = {"Trilu", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}


class NotUnderstoodError(CapstanError):
    """Raised if attention has another node than expected."""

    def __init__(self, node: NodeProto | None, what: str) -> None:
        name = "a graph input" if node is None else f"node {node.name or '/'.join(node.output)} ({node.op_type})"
        super().__init__(f"{name}: {what}")


def group_query_attention(
    model: ModelProto,
    caches: Sequence[tuple[str, str, str, str]],
    heads: tuple[int, int, int],
    context_length: int,
    mask: str = "attention_mask",
    positions: str = "position_ids",
) -> tuple[ModelProto, str]:
    """The same model with GroupQueryAttention over caches of one size, and the reason if it is unchanged (else empty).
    A graph that concatenates no cache is unchanged without a reason.

    `caches` are past key, past value, present key and present value of each layer; `heads` are the numbers of query and
    key heads, and their size.
    """
    wiring = Wiring(model.graph)
    made_by = [wiring.maker(present) for _, _, *presents in caches for present in presents]
    kinds = {node.op_type if node is not None else "" for node in made_by}
    if kinds not in ({"Concat"}, {WHOLE}):
        return model, ""
    if mask not in wiring.inputs:
        return model, f"it has no input {mask}, from which lengths are computed"
    if next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0) < LEAST_OPSET:
        return model, f"its operator set is older than {LEAST_OPSET}"
    result = copy_of(model)
    try:
        reader = Reader(Wiring(result.graph), heads[2], mask, positions)
        read = reader.attention if kinds == {"Concat"} else partial(reader.whole_attention, heads)
        layers = [read(cache) for cache in caches]
    except NotUnderstoodError as error:
        return model, str(error)
    if len({layer.rotary for layer in layers}) != 1:
        return model, "its layers rotate by different angles"
    if len({layer.kind for layer in layers}) != 1:
        return model, "its caches are cast to different types"
    write(result, layers, caches, heads, context_length, mask, positions)
    return result, ""


class Reader:
    """Reads attention upwards from its softmax."""

    def __init__(self, wiring: Wiring, head_size: int, mask: str, positions: str) -> None:
        self.wiring, self.head_size, self.mask, self.positions = wiring, head_size, mask, positions
        self._masks: set[str] = set()
        """The masks that were found causal."""
        products = [node for node in wiring.producer.values() if node.op_type == "MatMul"]
        self._products = {self._repeated(node.input[1]): node for node in products}
        """The MatMul nodes by their second factor."""

    def attention(self, cache: tuple[str, str, str, str]) -> Attention:
        past_key, past_value, present_key, present_value = cache
        keys_so_far, new_key, kind = self._appended(present_key, past_key)
        values_so_far, new_value, other_kind = self._appended(present_value, past_value)
        if kind != other_kind:
            raise NotUnderstoodError(self.wiring.producer.get(values_so_far), "is cast to another type than the keys")
        product = self._reader_of(values_so_far)
        weights = self._same(product.input[0])
        softmax = self._node(weights, "Softmax")
        if attribute(softmax, "axis", -1) not in (-1, 3):
            raise NotUnderstoodError(softmax, "is not over the positions")
        scores, outer = self._scores(softmax)
        query, first = self._scaled(scores.input[0])
        keys, second = self._scaled(scores.input[1])
        transposed = self._node(keys, "Transpose", perm=[0, 1, 3, 2])
        keys, third = self._scaled(transposed.input[0])
        if self._repeated(keys) != keys_so_far:
            raise NotUnderstoodError(transposed, f"is not of {present_key}")
        query, rotary = self._rotated(query)
        key, other = self._rotated(new_key)
        if rotary != other:
            raise NotUnderstoodError(scores, "multiplies q and k that are rotated by different angles")
        return Attention(
            self._flat(query),
            self._flat(key),
            self._flat(new_value),
            outer * first * second * third,
            rotary,
            self._output(product),
            kind,
        )

    def whole_attention(self, heads: tuple[int, int, int], cache: tuple[str, str, str, str]) -> Attention:
        """Recognises MultiHeadAttention(q, k, v, no bias, no padding, causal mask, past key, past value)."""
        past_key, past_value, present_key, present_value = cache
        node = self._node(self._same(present_key), WHOLE)
        given = [*node.input, *[""] * (WHOLE_INPUTS - len(node.input))]
        q, k, v, bias, padding, mask, key, value = given[:WHOLE_INPUTS]
        if list(node.output)[:3] != [node.output[0], present_key, present_value] or not (q and k and v):
            raise NotUnderstoodError(node, f"does not make {present_key} and {present_value}")
        if (key, value) != (past_key, past_value) or any(given[WHOLE_INPUTS:]):
            raise NotUnderstoodError(node, f"does not append to {past_key} and {past_value}")
        if bias or padding:
            raise NotUnderstoodError(node, f"has a bias or a mask of keys: {bias or padding}")
        if attribute(node, "num_heads", 0) != heads[0] or heads[0] != heads[1]:
            raise NotUnderstoodError(
                node, f"has {attribute(node, 'num_heads', 0)} heads instead of {heads[0]} of each kind"
            )
        if mask:
            self._require_causal(mask)
        elif not attribute(node, "unidirectional", 0):
            raise NotUnderstoodError(node, "is not causal")
        scale = next((item.f for item in node.attribute if item.name == "scale"), 0.0) or heads[2] ** -0.5
        linear = all((maker := self.wiring.producer.get(name)) and maker.op_type in LINEAR for name in (q, k, v))
        rotary = still(heads[2]) if linear else None
        return Attention(q, k, v, scale, rotary, node.output[0], three_dimensions=True)

    def _node(self, name: str, kind: str, **lists: list[int]) -> NodeProto:
        """The node that makes a tensor, of this operator and with these attributes."""
        node = self.wiring.producer.get(name)
        if node is None or node.op_type != kind:
            raise NotUnderstoodError(node, f"expected {kind}")
        for wanted, values in lists.items():
            if list(next((item.ints for item in node.attribute if item.name == wanted), [])) != values:
                raise NotUnderstoodError(node, f"its {wanted} is not {values}")
        return node

    def _same(self, name: str) -> str:
        """The tensor above nodes that change no value."""
        return self.wiring.original(name)

    def _only_reader(self, name: str) -> NodeProto:
        readers = self.wiring.consumers.get(name, [])
        if len(readers) != 1:
            raise NotUnderstoodError(self.wiring.producer.get(name), f"is read {len(readers)} times instead of once")
        return readers[0]

    def _appended(self, present: str, past: str) -> tuple[str, str, int | None]:
        """The cache with the new positions, the new positions alone, and the type to which the cache is cast before
        they are appended; None without a cast.
        """
        concat = self._node(self._same(present), "Concat")
        if len(concat.input) != 2 or attribute(concat, "axis", 0) not in (-2, 2):
            raise NotUnderstoodError(concat, f"does not append to {past}")
        if self._same(concat.input[0]) != past:
            raise NotUnderstoodError(concat, f"does not append to {past}")
        cast = self.wiring.producer.get(concat.input[0])
        kind = attribute(cast, "to", 0) if cast is not None and cast.op_type == "Cast" else None
        return concat.output[0], concat.input[1], kind

    def _reader_of(self, value: str) -> NodeProto:
        """The node that multiplies the attention weights by these values."""
        if value not in self._products:
            raise NotUnderstoodError(self.wiring.producer.get(value), "no product reads it with its heads repeated")
        return self._products[value]

    def _repeated(self, name: str) -> str:
        """The cache below a repetition of its heads (each several times in succession), or the tensor itself without
        repetition.
        """
        reshape = self.wiring.producer.get(name)
        if reshape is None or reshape.op_type != "Reshape":
            return name
        expand = self.wiring.producer.get(reshape.input[0])
        unsqueeze = self.wiring.producer.get(expand.input[0]) if expand is not None and expand.input else None
        if expand is None or expand.op_type != "Expand" or unsqueeze is None or unsqueeze.op_type != "Unsqueeze":
            return name
        return unsqueeze.input[0] if self._integers(unsqueeze.input[1]) == [2] else name

    def _integers(self, name: str) -> list[int] | None:
        return integers(self.wiring.constants.get(self._same(name)))

    def _number(self, name: str) -> float | None:
        """A float constant of one element."""
        values = floats(self.wiring.constants.get(self._same(name)))
        return values[0] if values is not None and len(values) == 1 else None

    def _scaled(self, name: str) -> tuple[str, float]:
        """Walks up past products with constants; returns the tensor and its total factor."""
        scale = 1.0
        while True:
            name = self._same(name)
            node = self.wiring.producer.get(name)
            if node is None or node.op_type not in ("Mul", "Div"):
                return name, scale
            number = self._number(node.input[1])
            if number is None and node.op_type == "Mul" and self._number(node.input[0]) is not None:
                number, name = self._number(node.input[0]), node.input[1]
            elif number is not None:
                name = node.input[0]
            else:
                return name, scale
            assert number is not None
            scale = scale * number if node.op_type == "Mul" else scale / number

    def _scores(self, softmax: NodeProto) -> tuple[NodeProto, float]:
        """The product of q and k below the mask, and its scale."""
        masked = self._node(self._same(softmax.input[0]), "Add")
        for place in (0, 1):
            name, scale = self._scaled(masked.input[place])
            node = self.wiring.producer.get(name)
            if node is not None and node.op_type == "MatMul":
                self._require_causal(masked.input[1 - place])
                return node, scale
        raise NotUnderstoodError(masked, "adds no mask to the scores")

    def _require_causal(self, name: str) -> None:
        """Raise unless the mask is computed only from lengths, attention_mask and small numbers, with a comparison of
        positions.
        """
        if name in self._masks:
            return
        found: set[str] = set()
        pending, seen = [name], {name}
        while pending:
            item = self.wiring.producer.get(pending.pop())
            if item is None or item.op_type == "Shape":
                continue  # an input, a constant, or a length
            if item.op_type not in MASK_OPS:
                raise NotUnderstoodError(item, "does not belong in a causal mask")
            found.add(item.op_type)
            for source in item.input:
                numbers = integers(self.wiring.constants.get(source)) or []
                odd = [number for number in numbers if MASK_NUMBERS < abs(number) < LARGEST_INDEX]
                if odd:
                    raise NotUnderstoodError(item, f"reads {odd[0]}: the mask is not only causal")
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        if not found & CAUSAL:
            raise NotUnderstoodError(self.wiring.producer.get(name), "compares no positions: the mask is not causal")
        self._masks.add(name)

    def _rotated(self, name: str) -> tuple[str, Rotary | None]:
        """Recognises x cos + rotate_half(x) sin of [batch, heads, positions, head size]; returns x and the angles, or
        None if the heads are not rotated.
        """
        made = self.wiring.maker(name)
        if made is not None and made.op_type == "Transpose":
            return name, None
        total = self._node(self._same(name), "Add")
        parts = [self._node(self._same(source), "Mul") for source in total.input]
        for straight, turned in (parts, parts[::-1]):
            for x, cosine in (straight.input, list(straight.input)[::-1]):
                for half, sine in (turned.input, list(turned.input)[::-1]):
                    if self._is_turned(half, x):
                        cos, sin = self._angles(cosine, "Cos"), self._angles(sine, "Sin")
                        if cos != sin:
                            raise NotUnderstoodError(total, "takes sine and cosine of different angles")
                        return x, cos
        raise NotUnderstoodError(total, "is not a rotary embedding of whole heads")

    def _is_turned(self, name: str, x: str) -> bool:
        """Whether a tensor is the second half of x, negated, followed by the first half."""
        concat = self.wiring.producer.get(self._same(name))
        if concat is None or concat.op_type != "Concat" or len(concat.input) != 2:
            return False
        negated, first = (self.wiring.producer.get(source) for source in concat.input)
        if negated is None or negated.op_type != "Neg" or first is None or attribute(concat, "axis", 0) not in (-1, 3):
            return False
        second = self.wiring.producer.get(negated.input[0])
        return second is not None and self._is_half(first, x, 0) and self._is_half(second, x, 1)

    def _is_half(self, node: NodeProto, x: str, which: int) -> bool:
        if node.op_type != "Slice" or node.input[0] != x or len(node.input) < 4:
            return False
        if self._integers(node.input[3]) not in ([-1], [3]):
            return False
        if len(node.input) > 4 and self._integers(node.input[4]) != [1]:
            return False
        outer = self._integers(node.input[1 + which])
        far = outer is not None and (outer == [0] if which == 0 else outer[0] in (self.head_size, 2**63 - 1, 2**31 - 1))
        return far and self._is_middle(node.input[2 - which], x)

    def _is_middle(self, name: str, x: str) -> bool:
        """Whether a number is half of the head size: a constant, or computed from the shape of x."""
        values = self._integers(name)
        if values is not None:
            return values == [self.head_size // 2]
        while (node := self.wiring.producer.get(name)) is not None and node.op_type in {*SAME_VALUES, "Unsqueeze"}:
            name = node.input[0]
        if node is None or node.op_type != "Div" or self._integers(node.input[1]) not in ([2],):
            return False
        gather = self.wiring.producer.get(self._same(node.input[0]))
        if gather is None or gather.op_type != "Gather" or self._integers(gather.input[1]) not in ([-1], [3]):
            return False
        shape = self.wiring.producer.get(gather.input[0])
        return shape is not None and shape.op_type == "Shape" and shape.input[0] == x

    def _angles(self, name: str, kind: str) -> Rotary:
        """Walks up from cosines or sines to the frequencies, which multiply the position ids."""
        scale = 1.0
        while True:
            name, factor = self._scaled(name)
            scale *= factor
            node = self.wiring.producer.get(name)
            if node is None or node.op_type != "Unsqueeze":
                break
            name = node.input[0]
        waves = self._node(name, kind)
        twice = self._node(self._same(waves.input[0]), "Concat")
        if len(twice.input) != 2 or twice.input[0] != twice.input[1] or attribute(twice, "axis", 0) not in (-1, 2):
            raise NotUnderstoodError(twice, "does not take the same angles for both halves")
        name = self._same(twice.input[0])
        node = self.wiring.producer.get(name)
        if node is not None and node.op_type == "Transpose":
            name = self._same(node.input[0])
            node = self.wiring.producer.get(name)
        if node is None or node.op_type not in ("MatMul", "Mul"):
            raise NotUnderstoodError(node, "is not a product of positions and frequencies")
        sides = [self._spread(source) for source in node.input]
        for tensor, position in (sides, sides[::-1]):
            values = floats(self.wiring.constants.get(tensor))
            if position == self.positions and values is not None and len(values) == self.head_size // 2:
                return Rotary(tuple(values), scale)
        raise NotUnderstoodError(node, f"is not a product of {self.positions} and {self.head_size // 2} frequencies")

    def _spread(self, name: str) -> str:
        """The tensor above nodes that change only its shape."""
        spreading = {*SAME_VALUES, "Expand", "Unsqueeze", "Reshape"}
        while (node := self.wiring.producer.get(name)) is not None and node.op_type in spreading:
            name = node.input[0]
        return name

    def _flat(self, name: str) -> str:
        """The tensor [batch, positions, heads x head size] below one of [batch, heads, positions, head size]; a tensor
        with four dimensions if single heads were changed before.
        """
        back = self._node(self._same(name), "Transpose", perm=[0, 2, 1, 3])
        reshape = self.wiring.producer.get(back.input[0])
        above = self.wiring.producer.get(reshape.input[0]) if reshape is not None and reshape.input else None
        if reshape is not None and reshape.op_type == "Reshape" and above is not None and above.op_type in LINEAR:
            return reshape.input[0]
        return back.input[0]

    def _output(self, product: NodeProto) -> str:
        back = self._only_reader(product.output[0])
        if back.op_type != "Transpose" or self._node(back.output[0], "Transpose", perm=[0, 2, 1, 3]) is not back:
            raise NotUnderstoodError(back, "does not put the heads side by side")
        reshape = self._only_reader(back.output[0])
        if reshape.op_type != "Reshape" or self._length(reshape.input[1]) != 3:
            raise NotUnderstoodError(reshape, "does not join the heads")
        return reshape.output[0]

    def _length(self, name: str) -> int:
        """The elements of a shape."""
        values = self._integers(name)
        node = self.wiring.producer.get(name)
        if values is None and node is not None and node.op_type == "Concat":
            return len(node.input)
        return len(values or [])


def floats(tensor: TensorProto | None) -> list[float] | None:
    """The values of an inline tensor of floats; None for anything else."""
    if tensor is None or tensor.data_type not in FLOATS or tensor.data_location == TensorProto.EXTERNAL:
        return None
    code, width = FLOATS[tensor.data_type]
    if tensor.raw_data:
        return list(struct.unpack(f"<{len(tensor.raw_data) // width}{code}", tensor.raw_data))
    return [float(value) for value in tensor.float_data] or None
