"""Recognises attention of one new token in a recorded step: norms, rotary embedding, cache write, attention, join."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ort_kernels import Met, Rules
from ..step_graph import Node, Recorded, StepGraph
from .attention import Attention, HeadNorms
from .attention_plan import IN_4_BITS, fits_attention
from .attention_signatures import HEAD_NORMS, JOINS, SIGNATURES, vector
from .norm import Norm

__all__ = ["RULES", "Finder", "with_joined"]


WRITES = ("cache_write", "cache_write_int8", "cache_write_int4")
BITS = {"rotary_int8": 8, "rotary_int4": 4, "cache_write_int8": 8, "cache_write_int4": 4}
"""The bits of an element of the caches, by the kind of the kernel that writes them."""
SPLITS = {0: "attention_split", 8: "attention_split_int8", 4: "attention_split_int4"}
"""Signatures by the bits of the caches."""


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
        split = self.made_for(query, ("qkv_split",), readers["q"])
        parts = ((query, "q", "output_0"), (key, "k", "output_1"), (value, "v", "output_2"))
        for made, name, output in parts:
            if split is None or self.made_for(made, ("qkv_split",), readers[name]) != split:
                return None
            if self.met[split].written(output) != made:
                return None
        assert split is not None
        rows = [4 * size for size in vector(self.met[split].kernel.uniforms["segment_sizes"])]
        if rows != [heads * head, kv_heads * head, kv_heads * head]:
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
            rotary=head,
            norms=norms,
            cache_bits=bits,
        )


def recorded_as(node: Node) -> int | None:
    """The recorded operation of a node; None if the node is only a part of one operation, or stands for several."""
    if isinstance(node.what, Recorded):
        return node.what.index
    return next(iter(node.origins)) if isinstance(node.what, Norm) and len(node.origins) == 1 else None


def grouped(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn norms, rotary embedding, split attention and its join into one node, if the values between them have no
    other reader.
    """
    finder = Finder(graph, met)
    by_index = finder.by_index
    replaced: dict[int, Node | None] = {}
    for index, found in met.items():
        origin = finder.origin(index)
        if origin is None:
            continue
        at, written = found.kernel.at, found.writes
        kind = SPLITS[origin.cache_bits]
        turns: set[int] = set()
        query = origin.query
        if origin.cache_bits == IN_4_BITS:
            turn = finder.only_reader(query, "hadamard")
            if turn is None:
                continue
            turns, query = {turn}, met[turn].written("output")
        split = finder.only_reader(query, kind)
        if split is None or finder.only_reader(written[at["indirect_buffer"]], kind) != split:
            continue
        partial = met[split].kernel
        caches = (at["present_key"], at["present_value"])
        reads = {graph.homes[value]: value for value in by_index[index].reads}
        filled = {written[cache] for cache in caches}
        if not filled <= set(by_index[split].reads) or not graph.last.keys() >= set(caches):
            # Our attention reads rows that the recorded kernel wrote to caches that outlive the step.
            continue
        join = finder.joined(split)
        if join is None:
            continue
        result = met[join].writes[met[join].kernel.at["output"]]
        end = join
        if origin.cache_bits == IN_4_BITS:
            back = finder.only_reader(result, "hadamard")
            if back is None:
                continue
            turns |= {join}
            end, result = back, met[back].written("output")
        what = Attention(
            heads=origin.heads,
            kv_heads=origin.kv_heads,
            head=origin.head,
            capacity=origin.capacity,
            scale=partial.real("alpha"),
            cos=origin.cos,
            sin=origin.sin,
            key=at["present_key"],
            value=at["present_value"],
            element=found.kernel.element,
            norms=origin.norms,
            rotary=origin.rotary,
            interleaved=origin.interleaved,
            cache_bits=origin.cache_bits,
            sinks=met[join].kernel.at.get("head_sink"),
        )
        if not fits_attention(what):
            continue
        gone = origin.indices | turns | {split}
        replaced |= dict.fromkeys(gone)
        replaced[end] = Node(
            what,
            (origin.packed, *(reads[cache] for cache in caches)),
            (result, *(written[cache] for cache in caches)),
            end,
            gone | {end},
        )
    kept: list[Node] = []
    for node in graph.nodes:
        at_index = recorded_as(node)
        if at_index in replaced:
            joined = replaced[at_index]
            kept += [joined] if joined else []
        else:
            kept.append(node)
    return over_shared_caches(over_4_bits(replace(graph, nodes=tuple(kept)), met), met)


def over_shared_caches(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn norm and rotary embedding of queries, split attention over the caches of an earlier layer and its join into
    one node, if the values between them have no other reader.
    """
    finder = Finder(graph, met)
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for index, found in met.items():
        if found.kernel.kind != "rotary_query":
            continue
        split = finder.only_reader(found.written("output"), "attention_split")
        join = None if split is None else finder.joined(split)
        if split is None or join is None:
            continue
        kernel, half = met[split].kernel, vector(found.kernel.uniforms["cos_cache_shape"])[1]
        heads, head = kernel.number("num_heads"), 4 * kernel.number("head_size_vec")
        alike = vector(found.kernel.uniforms["global_shape"])[2] == heads and 2 * half == head
        caches = (kernel.at["present_key"], kernel.at["present_value"])
        if not alike or not graph.last.keys() >= set(caches):
            continue
        query, passed, norms = found.read("input"), {index, split, join}, None
        norm = finder.made_for(query, HEAD_NORMS, index)
        if norm is not None:
            by = met[norm].kernel
            if (by.number("norm_count"), by.number("norm_size")) != (heads, head):
                continue
            norms = HeadNorms(by.at["scale"], None, by.real("epsilon"))
            query, passed = met[norm].read("x"), {*passed, norm}
        what = Attention(
            heads=heads,
            kv_heads=heads // kernel.number("n_reps"),
            head=head,
            capacity=kernel.number("present_sequence_length"),
            scale=kernel.real("alpha"),
            cos=found.kernel.at["cos_cache"],
            sin=found.kernel.at["sin_cache"],
            key=caches[0],
            value=caches[1],
            element=kernel.element,
            norms=norms,
            rotary=head,
            shares=True,
            sinks=met[join].kernel.at.get("head_sink"),
        )
        if not fits_attention(what) or vector(found.kernel.uniforms["cos_cache_shape"])[0] < what.capacity:
            continue
        reads = (query, met[split].read("present_key"), met[split].read("present_value"))
        joined[join] = Node(what, reads, (met[join].written("output"),), join, frozenset(passed))
        gone |= passed - {join}
    return with_joined(graph, joined, gone)


def with_joined(graph: StepGraph, joined: Mapping[int, Node], gone: Collection[int]) -> StepGraph:
    """The graph with these nodes in place of recorded operations, and without others."""
    kept = [joined.get(at, node) if (at := recorded_as(node)) is not None else node for node in graph.nodes]
    return replace(graph, nodes=tuple(node for node in kept if recorded_as(node) not in gone))


def over_4_bits(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn split attention over caches of 4 bits and its join into one node, if the kernels around them are unknown.
    The kernels that turn queries and results by a Hadamard matrix, and those that rotate, quantize and write, stay.
    """
    finder = Finder(graph, met)
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for index, found in met.items():
        if found.kernel.kind != "attention_split_int4":
            continue
        kernel = found.kernel
        join = finder.joined(index)
        if join is None:
            continue
        heads, last = kernel.number("num_heads"), met[join]
        what = Attention(
            heads=heads,
            kv_heads=heads // kernel.number("n_reps"),
            head=4 * kernel.number("head_size_vec"),
            capacity=kernel.number("present_sequence_length"),
            scale=kernel.real("alpha"),
            cos=0,
            sin=0,
            key=kernel.at["present_key"],
            value=kernel.at["present_value"],
            element=kernel.element,
            cache_bits=4,
            prepared=True,
            sinks=last.kernel.at.get("head_sink"),
        )
        if not fits_attention(what):
            continue
        reads = (found.read("q"), found.read("present_key"), found.read("present_value"))
        made = (last.written("output"),)
        joined[join] = Node(what, reads, made, join, frozenset({index, join}))
        gone.add(index)
    return with_joined(graph, joined, gone)


RULES = Rules(SIGNATURES, groups={"attention": grouped})
