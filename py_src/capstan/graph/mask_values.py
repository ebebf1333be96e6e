"""Computes an attention mask from its nodes, for a prompt of known lengths, to learn which positions a query sees."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from .onnx_pb2 import NodeProto, TensorProto
from .wiring import Wiring, attribute

__all__ = ["Lengths", "MaskError", "MaskValues", "Values"]

Number = float | None
"""None is an unknown size."""
CODES: dict[int, str] = {
    TensorProto.FLOAT: "f",
    TensorProto.FLOAT16: "e",
    TensorProto.INT32: "i",
    TensorProto.INT64: "q",
    TensorProto.BOOL: "?",
}
PAIRS: dict[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "And": lambda a, b: bool(a) and bool(b),
    "Or": lambda a, b: bool(a) or bool(b),
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Min": min,
    "Max": max,
}
LARGEST = 1 << 22
"""The most elements of a tensor."""


class MaskError(Exception):
    """Raised for a node that is not computed."""

    def __init__(self, node: NodeProto | None, what: str) -> None:
        super().__init__(what)
        self.node, self.what = node, what


@dataclass(frozen=True)
class Lengths:
    """A run over `tokens` positions after `past` ones."""

    past: int
    tokens: int

    @property
    def total(self) -> int:
        return self.past + self.tokens


@dataclass(frozen=True)
class Values:
    """A tensor: its sizes, and its elements in row-major order."""

    dims: tuple[int, ...]
    items: list[Number]


@dataclass
class MaskValues:
    """Computes tensors of one graph for one run of one sequence. All its positions are real."""

    wiring: Wiring
    mask: str
    positions: str
    lengths: Lengths
    _known: dict[str, Values] = field(default_factory=dict)

    def of(self, name: str) -> Values:
        """The values of a tensor. Raises MaskError if a node is not computed."""
        if name not in self._known:
            self._known[name] = self._given(name) if name not in self.wiring.producer else self._made(name)
        return self._known[name]

    def _given(self, name: str) -> Values:
        tensor, about = self.wiring.constants.get(name), self.lengths
        if name == self.mask:
            return Values((1, about.total), [1] * about.total)
        if name == self.positions:
            return Values((1, about.tokens), list(range(about.past, about.total)))
        if tensor is None or tensor.data_type not in CODES or tensor.data_location == TensorProto.EXTERNAL:
            raise MaskError(None, f"reads {name}, which is neither a length nor a small constant")
        code, count = CODES[tensor.data_type], math.prod(tensor.dims)
        held: Sequence[Number] = tensor.int64_data or tensor.int32_data or tensor.float_data
        if tensor.raw_data:
            held = struct.unpack(f"<{count}{code}", tensor.raw_data)
        return Values(tuple(tensor.dims), list(held))

    def _made(self, name: str) -> Values:
        node = self.wiring.producer[name]
        computed = getattr(self, f"_{node.op_type.lower()}", None)
        if node.op_type in PAIRS:
            return self._pair(node)
        if computed is None:
            raise MaskError(node, "does not belong in a mask")
        found: Values = computed(node)
        if len(found.items) > LARGEST:
            raise MaskError(node, f"makes more than {LARGEST} elements")
        return found

    def _inputs(self, node: NodeProto) -> Iterator[Values]:
        return (self.of(name) for name in node.input)

    def _integers(self, node: NodeProto, place: int) -> list[int]:
        if len(node.input) <= place or not node.input[place]:
            raise MaskError(node, f"has no input {place}")
        items = self.of(node.input[place]).items
        if any(item is None for item in items):
            raise MaskError(node, "needs a size that the mask should not depend on")
        return [int(item or 0) for item in items]

    def _identity(self, node: NodeProto) -> Values:
        return self.of(node.input[0])

    def _constant(self, node: NodeProto) -> Values:
        return self._given(node.output[0])

    def _cast(self, node: NodeProto) -> Values:
        given, kind = self.of(node.input[0]), attribute(node, "to", 0)
        if kind == TensorProto.BOOL:
            return Values(given.dims, [None if item is None else bool(item) for item in given.items])
        whole = kind in (TensorProto.INT32, TensorProto.INT64)
        return Values(given.dims, [None if item is None else int(item) if whole else item for item in given.items])

    def _not(self, node: NodeProto) -> Values:
        given = self.of(node.input[0])
        return Values(given.dims, [not item for item in given.items])

    def _neg(self, node: NodeProto) -> Values:
        given = self.of(node.input[0])
        return Values(given.dims, [-(item or 0) for item in given.items])

    def _shape(self, node: NodeProto) -> Values:
        name, about = node.input[0], self.lengths
        if name in (self.mask, self.positions):
            sizes: list[Number] = list(self.of(name).dims)
        elif name in self.wiring.inputs and name.startswith("past"):
            sizes = [1, None, about.past, None]
        else:
            sizes = [1, about.tokens, None, None]
        return Values((len(sizes),), sizes)

    def _range(self, node: NodeProto) -> Values:
        start, end, step = (self._integers(node, place)[0] for place in range(3))
        items: list[Number] = list(range(start, end, step))
        return Values((len(items),), items)

    def _reducesum(self, node: NodeProto) -> Values:
        given = self.of(node.input[0])
        if given.dims[:-1] != (1,) * (len(given.dims) - 1):
            raise MaskError(node, "sums more than one row")
        kept = attribute(node, "keepdims", 1)
        return Values((*given.dims[:-1], 1) if kept else given.dims[:-1], [sum(item or 0 for item in given.items)])

    def _gather(self, node: NodeProto) -> Values:
        given, places = self.of(node.input[0]), self.of(node.input[1])
        if len(given.dims) != 1:
            raise MaskError(node, "gathers from more than a list of sizes")
        return Values(places.dims, [given.items[place] for place in self._integers(node, 1)])

    def _slice(self, node: NodeProto) -> Values:
        given = self.of(node.input[0])
        steps = self._integers(node, 4) if len(node.input) > 4 else [1]
        if len(given.dims) != 1 or steps != [1]:
            raise MaskError(node, "cuts more than a list of sizes")
        items = given.items[self._integers(node, 1)[0] : self._integers(node, 2)[0]]
        return Values((len(items),), items)

    def _concat(self, node: NodeProto) -> Values:
        given = list(self._inputs(node))
        if any(len(each.dims) != 1 for each in given):
            raise MaskError(node, "joins more than lists of sizes")
        items = [item for each in given for item in each.items]
        return Values((len(items),), items)

    def _unsqueeze(self, node: NodeProto) -> Values:
        given, axes = self.of(node.input[0]), self._integers(node, 1)
        rank, left = len(given.dims) + len(axes), list(given.dims)
        placed = {axis % rank for axis in axes}
        return Values(tuple(1 if place in placed else left.pop(0) for place in range(rank)), given.items)

    def _squeeze(self, node: NodeProto) -> Values:
        given = self.of(node.input[0])
        axes = self._integers(node, 1) if len(node.input) > 1 else [i for i, size in enumerate(given.dims) if size == 1]
        gone = {axis % len(given.dims) for axis in axes}
        return Values(tuple(size for place, size in enumerate(given.dims) if place not in gone), given.items)

    def _reshape(self, node: NodeProto) -> Values:
        given, wanted = self.of(node.input[0]), self._integers(node, 1)
        sizes = [given.dims[place] if size == 0 else size for place, size in enumerate(wanted)]
        if -1 in sizes:
            sizes[sizes.index(-1)] = len(given.items) // max(1, -math.prod(sizes))
        return Values(tuple(sizes), given.items)

    def _expand(self, node: NodeProto) -> Values:
        given, sizes = self.of(node.input[0]), tuple(self._integers(node, 1))
        return spread(given, joint(given.dims, sizes))

    def _where(self, node: NodeProto) -> Values:
        given = list(self._inputs(node))
        dims = joint(*(each.dims for each in given))
        asked, yes, no = (spread(each, dims).items for each in given)
        return Values(dims, [a if chosen else b for chosen, a, b in zip(asked, yes, no, strict=True)])

    def _pair(self, node: NodeProto) -> Values:
        first, second = self._inputs(node)
        dims, computed = joint(first.dims, second.dims), PAIRS[node.op_type]
        found: list[Number] = []
        for a, b in zip(spread(first, dims).items, spread(second, dims).items, strict=True):
            if a is None or b is None:
                raise MaskError(node, "needs a size that the mask should not depend on")
            found.append(computed(a, b))
        return Values(dims, found)


def joint(*dims: Sequence[int]) -> tuple[int, ...]:
    """The sizes to which tensors of these sizes are spread together."""
    rank = max(map(len, dims))
    filled = [(1,) * (rank - len(each)) + tuple(each) for each in dims]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*filled, strict=True))


def spread(given: Values, dims: tuple[int, ...]) -> Values:
    """A tensor with its elements repeated along axes of size 1."""
    if given.dims == dims:
        return given
    if len(given.items) == 1:
        return Values(dims, given.items * math.prod(dims))
    sizes, steps, step = (1,) * (len(dims) - len(given.dims)) + given.dims, [0] * len(dims), 1
    for place in reversed(range(len(dims))):
        steps[place] = step if sizes[place] > 1 else 0
        step *= sizes[place]
    places = product(
        *(range(0, size * step, step) if step else (0,) * size for size, step in zip(dims, steps, strict=True))
    )
    return Values(dims, [given.items[sum(each)] for each in places])
