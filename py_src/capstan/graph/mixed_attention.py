"""Recognises attention in primitive operations in a graph whose other layers have GroupQueryAttention, and rewrites it
to GroupQueryAttention. Exports of Gemma 4 E2B and E4B have this form, where some heads are longer and the last layers
read the caches of earlier ones.

    q product -> norm -> (RotaryEmbedding) -> Reshape, Transpose
    a cache: Concat(past, new), or the present of another layer -> (repeated for the query heads)
    MatMul(q, keys transposed) -> (scaled) -> Where(mask) or Add(mask) -> Softmax -> MatMul(values)
        -> Transpose, Reshape

A layer that reads another layer's cache appends nothing: its new keys and values have no positions. The mask is
computed for two runs; it must hide what comes later, and all but a window of what came before if there is a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .attention_writer import tidy
from .carried import CachePair
from .mask_values import Lengths, MaskError, MaskValues
from .node_writer import NodeWriter
from .onnx_pb2 import ModelProto, NodeProto
from .plain_attention import NotUnderstoodError, Reader
from .total_length import add_lengths
from .wiring import Wiring, attribute, copy_of, integers

__all__ = ["mixed_attention"]

ATTENTION, ROTARY = "GroupQueryAttention", "RotaryEmbedding"
X, POSITIONS, COS, SIN = range(4)
"""Inputs of RotaryEmbedding."""
HIDDEN = -1e4
"""Scores of hidden positions are below this."""
FEW = 4
"""Integers up to this one occur in masks as axes, ranks and steps; a window's length is larger."""


@dataclass(frozen=True)
class Heads:
    """Heads side by side, [batch, positions, heads x head size], and the tables of the angles by which they turn."""

    tensor: str
    tables: tuple[str, ...] = ()
    interleaved: int = 0


@dataclass(frozen=True)
class Plain:
    """The attention of one layer."""

    caches: tuple[str, str]
    """The names of the keys and the values, with those of this run."""
    query: Heads
    new: tuple[Heads, Heads] | None
    """The keys and values of this run; None if another layer makes them."""
    scale: float
    window: int
    """-1 without a window."""
    output: str


def mixed_attention(
    model: ModelProto, layers: Sequence[tuple[CachePair, CachePair]], heads: int, mask: str, positions: str
) -> tuple[ModelProto, str]:
    """The model with GroupQueryAttention in all layers, and the reason if it is unchanged although some layers have
    none. `layers` are the caches of keys and values; `heads` is the number of query heads.
    """
    wiring = Wiring(model.graph)
    attentions = [node for node in model.graph.node if node.op_type == ATTENTION and len(node.output) > 1]
    products = {name for node in wiring.producer.values() if node.op_type == "MatMul" for name in node.input}
    softmaxes = [node for node in model.graph.node if node.op_type == "Softmax" and node.output[0] in products]
    if not attentions or not softmaxes or mask not in wiring.inputs:
        return model, ""
    result = copy_of(model)
    reader = MixedReader(Wiring(result.graph), layers, mask, positions)
    try:
        found = [reader.plain(node) for node in result.graph.node[:] if node.op_type == "Softmax"]
    except NotUnderstoodError as error:
        return model, str(error)
    write(result, found, layers, heads, mask)
    return result, ""


class MixedReader(Reader):
    """Reads attention upwards from a softmax."""

    def __init__(
        self, wiring: Wiring, layers: Sequence[tuple[CachePair, CachePair]], mask: str, positions: str
    ) -> None:
        super().__init__(wiring, 0, mask, positions)
        self._pairs = {pair.present: pair for layer in layers for pair in layer}
        self._windows: dict[str, int] = {}
        self._written: set[str] = set()
        """The caches to which an attention appends. Others read them after the first one."""

    def plain(self, softmax: NodeProto) -> Plain:
        if attribute(softmax, "axis", -1) not in (-1, 3):
            raise NotUnderstoodError(softmax, "is not over the positions")
        product = self._only_reader(softmax.output[0])
        if product.op_type != "MatMul" or product.input[0] != softmax.output[0]:
            raise NotUnderstoodError(product, "does not multiply values by their shares")
        values = self._cache(product.input[1], product)
        name, window = self._masked(softmax)
        name, scale = self._scaled(name)
        scores = self._node(name, "MatMul")
        query, first = self._scaled(scores.input[0])
        keys, second = self._scaled(scores.input[1])
        keys, third = self._scaled(self._node(keys, "Transpose", perm=[0, 1, 3, 2]).input[0])
        cache = self._cache(keys, scores)
        taken = self._heads(query)
        new = self._new(cache), self._new(values)
        key, value = new
        if (key is None) != (value is None):
            raise NotUnderstoodError(scores, f"appends to one of {cache} and {values} only")
        if key is not None and (key.tables, key.interleaved) != (taken.tables, taken.interleaved):
            raise NotUnderstoodError(scores, "multiplies q and k that are rotated by different angles")
        appended = (key, value) if key is not None and value is not None else None
        return Plain((cache, values), taken, appended, scale * first * second * third, window, self._output(product))

    def _cache(self, name: str, node: NodeProto) -> str:
        found = self._same(self._repeated(self._same(name)))
        if found not in self._pairs:
            raise NotUnderstoodError(node, f"reads {found}, which is no cache")
        return found

    def _new(self, present: str) -> Heads | None:
        """The heads that are appended to a cache; None if another layer's attention appends to it."""
        maker, past = self.wiring.producer.get(present), self._pairs[present].past
        if maker is None or maker.op_type == ATTENTION or present in self._written:
            return None
        self._written.add(present)
        _, appended, kind = self._appended(present, past)
        readers = [node for node in self.wiring.consumers.get(present, []) if node.op_type == ATTENTION]
        if kind is not None or readers:
            raise NotUnderstoodError(maker, "is cast, or read by GroupQueryAttention, too")
        return self._heads(appended)

    def _heads(self, name: str) -> Heads:
        """Recognises heads apart, [batch, heads, positions, head size], that RotaryEmbedding may turn before or after
        they are put apart.
        """
        name, after = self._turned(self._same(name))
        back = self._node(self._same(name), "Transpose", perm=[0, 2, 1, 3])
        reshape = self._node(back.input[0], "Reshape")
        name, before = self._turned(self._same(reshape.input[0]))
        if after and before:
            raise NotUnderstoodError(before, "rotates heads for the second time")
        turned = before or after
        if turned is None:
            return Heads(name)
        return Heads(name, (turned.input[COS], turned.input[SIN]), attribute(turned, "interleaved", 0))

    def _turned(self, name: str) -> tuple[str, NodeProto | None]:
        node = self.wiring.producer.get(name)
        if node is None or node.op_type != ROTARY:
            return name, None
        scaled = any(item.name == "scale" and item.f != 1.0 for item in node.attribute)
        if node.input[POSITIONS] != self.positions or scaled or attribute(node, "rotary_embedding_dim", 0):
            raise NotUnderstoodError(node, f"does not rotate whole heads at {self.positions}")
        return self._same(node.input[X]), node

    def _masked(self, softmax: NodeProto) -> tuple[str, int]:
        """The scores before the mask, and the window."""
        node = self.wiring.producer.get(self._same(softmax.input[0]))
        if node is None or node.op_type not in ("Where", "Add"):
            raise NotUnderstoodError(node, "does not mask the scores")
        found = [place for place, name in enumerate(node.input) if self._is_scores(name)]
        if len(found) != 1:
            raise NotUnderstoodError(node, "masks no product of q and k")
        [place] = found
        if node.op_type == "Where":
            return node.input[place], self._window(node, node.input[0], node.input[3 - place], hides=place == 2)
        return node.input[place], self._window(node, node.input[1 - place])

    def _is_scores(self, name: str) -> bool:
        node = self.wiring.producer.get(self._scaled(name)[0])
        return node is not None and node.op_type == "MatMul"

    def _window(self, node: NodeProto, mask: str, fill: str = "", hides: bool = False) -> int:
        """The window of a mask of booleans, with the score of hidden positions, or of a mask that is added."""
        if mask in self._windows:
            return self._windows[mask]
        least = self._number(fill) if fill else None
        if fill and (least is None or least > HIDDEN):
            raise NotUnderstoodError(node, f"gives hidden positions the score {least}")
        longest = max([FEW, *self._numbers_above(mask)])
        windows = {self._of_run(node, mask, bool(fill), hides, Lengths(*each)) for each in ((0, 3), (longest + 3, 2))}
        found = max(windows)
        if windows - {-1, found}:
            raise NotUnderstoodError(node, f"hides positions by windows of {sorted(windows)}")
        self._windows[mask] = found
        return found

    def _of_run(self, node: NodeProto, mask: str, booleans: bool, hides: bool, lengths: Lengths) -> int:
        """The window in one run: the number of positions that its last query sees; -1 if it sees all. Raises unless
        all its queries see as many.
        """
        try:
            found = MaskValues(self.wiring, self.mask, self.positions, lengths).of(mask)
        except MaskError as error:
            raise NotUnderstoodError(error.node or node, error.what) from error
        if found.dims[-2:] != (lengths.tokens, lengths.total) or len(found.items) != lengths.tokens * lengths.total:
            raise NotUnderstoodError(node, f"has a mask of {list(found.dims)}")
        if booleans:
            seen = [bool(item) != hides for item in found.items]
        else:
            if any(item is None or (item != 0 and item > HIDDEN) for item in found.items):
                raise NotUnderstoodError(node, "adds more than a mask to the scores")
            seen = [item == 0 for item in found.items]
        window = sum(seen[-lengths.total :])
        for query in range(lengths.tokens):
            last = lengths.past + query
            row = seen[query * lengths.total : (query + 1) * lengths.total]
            if row != [last - window < place <= last for place in range(lengths.total)]:
                raise NotUnderstoodError(node, "has a mask that is not causal, or has more than one window")
        return -1 if window == lengths.total else window

    def _numbers_above(self, name: str) -> list[int]:
        """The integer constants from which a mask is made."""
        found, pending, seen = list[int](), [name], {name}
        while pending:
            item = pending.pop()
            found += [
                abs(number) for number in integers(self.wiring.constants.get(item)) or [] if abs(number) < 1 << 20
            ]
            node = self.wiring.producer.get(item)
            for source in node.input if node is not None and node.op_type != "Shape" else ():
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return found


def write(
    model: ModelProto,
    found: Sequence[Plain],
    layers: Sequence[tuple[CachePair, CachePair]],
    heads: int,
    mask: str,
) -> None:
    """Replace the recognised attention, in place; nodes without a reader are deleted."""
    graph, writer = model.graph, NodeWriter(model.graph, "/capstan/mixed_attention")
    pairs, lengths = {key.present: (key, value) for key, value in layers}, add_lengths(writer, mask)
    gone = {name for each in found for name in (each.output, *(each.caches if each.new is not None else ()))}
    for node in graph.node:
        node.output[:] = [writer.name("replaced") if name in gone else name for name in node.output]
    for each in found:
        key, value = pairs[each.caches[0]]
        if each.new is not None:
            taken, caches, made = [part.tensor for part in each.new], [key.past, value.past], list(each.caches)
        else:
            width = key.heads * key.head_size
            limits = (([0, 0], "starts"), ([0, width], "ends"), ([1, 2], "axes"))
            given = [each.query.tensor, *(writer.ints(numbers, part) for numbers, part in limits)]
            empty = writer.add("Slice", given, "no_positions")
            taken, caches, made = [empty, empty], list(each.caches), []
        writer.add(
            ATTENTION,
            [each.query.tensor, *taken, *caches, *lengths, *each.query.tables],
            outputs=[each.output, *made],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=key.heads,
            scale=each.scale,
            local_window_size=each.window,
            do_rotary=int(bool(each.query.tables)),
            rotary_interleaved=each.query.interleaved,
        )
    graph.node.extend(writer.made)
    tidy(model)
