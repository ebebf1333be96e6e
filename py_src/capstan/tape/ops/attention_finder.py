"""Follows a recorded attention of one new token from the kernel that writes the cache back to the packed q, k and v,
and forward to the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..ort_kernels import Met
from ..step_graph import Node, Recorded, StepGraph
from .attention import HeadNorms
from .attention_signatures import HEAD_NORMS, JOINS, vector
from .elementwise import Multiply
from .norm import Norm

__all__ = ["Finder", "Origin", "recorded_as"]

WRITES = ("cache_write", "cache_write_int8", "cache_write_int4")
BITS = {"rotary_int8": 8, "rotary_int4": 4, "cache_write_int8": 8, "cache_write_int4": 4}
"""The bits of an element of the caches, by the kind of the kernel that writes them."""


@dataclass(frozen=True)
class Origin:
    """The source of a recorded attention's q, k and v: the packed value that holds all three, and the operations
    recorded between this value and the attention.
    """

    packed: int
    """The value of the packed q, k and v."""
    indices: frozenset[int]
    heads: int
    kv_heads: int
    head: int
    capacity: int
    cos: int
    sin: int
    query: int
    """The value of the rotated q."""
    rotary: int
    """Elements of a head that are rotated."""
    interleaved: bool = False
    norms: HeadNorms | None = None
    cache_bits: int = 0
    gates: int | None = None
    """The value of the gates of the heads, which follow the queries, if there are any."""


@dataclass
class Finder:
    """Searches from the operation that writes the cache back to the packed q, k and v, and forward to the result."""

    graph: StepGraph
    met: Mapping[int, Met]

    def __post_init__(self) -> None:
        self.readers = self.graph.readers()
        self.by_index = {index: node for node in self.graph.nodes if (index := recorded_as(node)) is not None}
        self.makers = {value: index for index, node in self.by_index.items() for value in node.writes}

    def only_reader(self, value: int, *kinds: str) -> int | None:
        """The operation of one of these kinds that is the only reader of the value."""
        readings = self.readers.get(value, ())
        index = recorded_as(readings[0]) if len(readings) == 1 else None
        return index if index is not None and index in self.met and self.met[index].kernel.kind in kinds else None

    def made_for(self, value: int, kinds: Sequence[str], reader: int) -> int | None:
        """The operation of one of these kinds that makes the value, if the value's only reader is `reader`."""
        index = self.makers.get(value)
        if index is None or index not in self.met or self.met[index].kernel.kind not in kinds:
            return None
        return index if self.only_reader(value, self.met[reader].kernel.kind) == reader else None

    def joined(self, split: int, kinds: Collection[str] = JOINS) -> int | None:
        """The operation that joins the splits of an attention, if nothing else reads them."""
        found = self.met[split]
        readers = {self.only_reader(found.written(name), *kinds) for name in ("out_split_vx", "metadata")}
        return readers.pop() if len(readers) == 1 else None

    def gate(self, result: int, gates: int) -> tuple[int, int] | None:
        """The operations that take the sigmoid of `gates` and multiply the result of an attention by it."""
        sigmoid, times = self.only_reader(gates, "sigmoid"), self.only_reader(result, "multiply")
        if sigmoid is None or times is None:
            return None
        opened = self.met[sigmoid].written("y")
        both = {self.met[times].read(name) for name in ("input_a", "input_b")} == {result, opened}
        return (sigmoid, times) if both and self.only_reader(opened, "multiply") == times else None

    def origin(self, index: int) -> Origin | None:
        """The Origin for the cache that the operation at `index` writes: the packed q, k and v from which the cache's
        rows are made. None if the operation writes no cache, or if the source of its rows is not recognised.
        """
        found = self.met[index]
        if found.kernel.kind in ("rotary", "rotary_interleaved"):
            kernel, at = found.kernel, found.kernel.at
            interleaved = kernel.kind == "rotary_interleaved"
            # Elements are counted in vectors of four if halves are rotated.
            unit = 1 if interleaved else 4
            return Origin(
                packed=found.read("packed_qkv"),
                indices=frozenset({index}),
                heads=kernel.number("num_heads"),
                kv_heads=kernel.number("kv_num_heads"),
                head=unit * kernel.number("head_size"),
                capacity=kernel.number("present_sequence_length"),
                cos=at["cos_cache"],
                sin=at["sin_cache"],
                query=found.written("query"),
                rotary=2 * unit * kernel.number("half_rotary_dim"),
                interleaved=interleaved,
            )
        if found.kernel.kind in ("rotary_int8", "rotary_int4"):
            kernel, at = found.kernel, found.kernel.at
            heads = kernel.number("num_heads")
            return Origin(
                packed=found.read("packed_qkv"),
                indices=frozenset({index}),
                heads=heads,
                kv_heads=kernel.number("kv_num_heads"),
                head=kernel.number("hidden_size") // heads,
                capacity=kernel.number("present_seq_length"),
                cos=at["cos_cache"],
                sin=at["sin_cache"],
                query=found.written("query"),
                rotary=2 * vector(kernel.uniforms["cos_cache_shape"])[1],
                cache_bits=BITS[kernel.kind],
            )
        return self.taken_apart(index) if found.kernel.kind in WRITES else None

    def taken_apart(self, index: int) -> Origin | None:
        """The Origin for a cache whose keys were split from the packed value, rotated and possibly normalised by
        earlier operations.
        """
        write = self.met[index]
        rotary = self.made_for(write.read("key"), ("rotary_apart", "rotary_normed"), index)
        if rotary is None:
            return None
        turned = self.met[rotary]
        sizes, uniforms = turned.kernel.at, turned.kernel.uniforms
        heads, kv_heads = vector(uniforms["q_global_shape"])[2], vector(uniforms["k_global_shape"])[2]
        bits = BITS.get(write.kernel.kind, 0)
        head = turned.kernel.number("head_size")
        if bits:
            capacity, written_heads = write.kernel.number("present_seq_length"), write.kernel.number("kv_num_heads")
        else:
            capacity = vector(write.kernel.uniforms["present_key_shape"])[2]
            written_heads = vector(write.kernel.uniforms["key_shape"])[2]
        query, key, value = turned.read("q_input"), turned.read("k_input"), write.read("value")
        passed = {index, rotary}
        readers = {"q": rotary, "k": rotary, "v": index}
        norms = None
        if turned.kernel.kind == "rotary_normed":
            epsilon = turned.kernel.real("qk_norm_epsilon")
            norms = HeadNorms(sizes["q_norm_weight"], sizes["k_norm_weight"], epsilon)
        else:
            q_norm, k_norm = (self.made_for(made, HEAD_NORMS, rotary) for made in (query, key))
            v_norm = self.made_for(value, HEAD_NORMS, index)
            if q_norm is not None and k_norm is not None:
                normed = {"q": q_norm, "k": k_norm} | ({} if v_norm is None else {"v": v_norm})
                by = {name: self.met[norm].kernel for name, norm in normed.items()}
                counts = {"q": heads, "k": kv_heads, "v": kv_heads}
                if any(
                    (each.number("norm_count"), each.number("norm_size")) != (counts[x], head) for x, each in by.items()
                ):
                    return None
                gammas = {f"{name}_gamma": each.at["scale"] for name, each in by.items()}
                epsilons = {each.real("epsilon") for each in by.values()}
                if len(epsilons) != 1:
                    return None
                norms = HeadNorms(epsilon=epsilons.pop(), **gammas)
                query, key = self.met[q_norm].read("x"), self.met[k_norm].read("x")
                value = value if v_norm is None else self.met[v_norm].read("x")
                passed |= set(normed.values())
                readers |= normed
        apart = self.made_for(query, ("split_heads",), readers["q"])
        gates = None
        if apart is not None:
            found = self.met[apart]
            pair = [4 * size for size in vector(found.kernel.uniforms["segment_sizes"])]
            if pair != [head, head] or 4 * found.kernel.number("input_size") != 2 * heads * head or bits:
                return None
            query, gates, readers["q"] = found.read("input"), found.written("output_1"), apart
            passed |= {apart}
        split = self.made_for(query, ("qkv_split",), readers["q"])
        parts = ((query, "q", "output_0"), (key, "k", "output_1"), (value, "v", "output_2"))
        for made, name, output in parts:
            if split is None or self.made_for(made, ("qkv_split",), readers[name]) != split:
                return None
            if self.met[split].written(output) != made:
                return None
        assert split is not None
        rows = [4 * size for size in vector(self.met[split].kernel.uniforms["segment_sizes"])]
        if rows != [heads * head * (1 if gates is None else 2), kv_heads * head, kv_heads * head]:
            return None
        if vector(uniforms["cos_cache_shape"])[0] < capacity or written_heads != kv_heads:
            return None
        return Origin(
            packed=self.met[split].read("input"),
            indices=frozenset({*passed, split}),
            heads=heads,
            kv_heads=kv_heads,
            head=head,
            capacity=capacity,
            cos=sizes["cos_cache"],
            sin=sizes["sin_cache"],
            query=turned.written("q_output"),
            rotary=2 * vector(uniforms["cos_cache_shape"])[1],
            norms=norms,
            cache_bits=bits,
            gates=gates,
        )


def recorded_as(node: Node) -> int | None:
    """The recorded operation of a node; None if the node is only a part of one operation, or stands for several."""
    if isinstance(node.what, Recorded):
        return node.what.index
    return next(iter(node.origins)) if isinstance(node.what, Multiply | Norm) and len(node.origins) == 1 else None
