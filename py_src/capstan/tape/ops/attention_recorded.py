"""Reads attention of one new token out of a recorded step: norms, rotary embedding, cache write, attention, join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, Recorded, StepGraph
from ..uniforms import Number
from .attention import Attention, HeadNorms, fits_attention
from .norm import NORM_LACKS

__all__ = ["RULES"]


def one_token(kernel: OrtKernel) -> bool:
    within_head = 0 < 2 * kernel.number("half_rotary_dim") <= kernel.number("head_size")
    return within_head and kernel.uniforms["sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1


def one_query(kernel: OrtKernel) -> bool:
    biased = any(kernel.uniforms[f"attn_bias_dim{axis}"] not in (0, 1) for axis in (0, 1))
    return kernel.uniforms["new_sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1 and not biased


JOINS = ("attention_join", "attention_join_sinks")
ATTENTION_LACKS = ("softcap", "head_sink", "local_window", "attn_bias[", "attention_bias[")


@dataclass(frozen=True)
class Origin:
    """Where the packed q, k and v of an attention come from, and what was recorded between that and the attention."""

    packed: int
    """The value."""
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


@dataclass
class Finder:
    """Looks from the operation that writes the cache, up to the packed q, k and v and down to the result."""

    graph: StepGraph
    met: Mapping[int, Met]

    def __post_init__(self) -> None:
        self.readers = self.graph.readers()
        self.by_index = {node.what.index: node for node in self.graph.nodes if isinstance(node.what, Recorded)}
        self.makers = {value: index for index, node in self.by_index.items() for value in node.writes}

    def only_reader(self, value: int, *kinds: str) -> int | None:
        """The operation of one of those kinds which alone reads the value."""
        readings = [node.what for node in self.readers.get(value, ())]
        if len(readings) != 1 or not isinstance(readings[0], Recorded):
            return None
        index = readings[0].index
        return index if index in self.met and self.met[index].kernel.kind in kinds else None

    def made_for(self, value: int, kinds: Sequence[str], reader: int) -> int | None:
        """The operation of one of those kinds that makes the value, for nobody but `reader`."""
        index = self.makers.get(value)
        if index is None or index not in self.met or self.met[index].kernel.kind not in kinds:
            return None
        return index if self.only_reader(value, self.met[reader].kernel.kind) == reader else None

    def origin(self, index: int) -> Origin | None:
        """Of the cache that the operation at `index` writes."""
        found = self.met[index]
        if found.kernel.kind in ("rotary", "rotary_interleaved"):
            kernel, at = found.kernel, found.kernel.at
            interleaved = kernel.kind == "rotary_interleaved"
            # Elements are counted in vectors of four where halves are rotated.
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
        return self.taken_apart(index) if found.kernel.kind == "cache_write" else None

    def taken_apart(self, index: int) -> Origin | None:
        """Of a cache whose keys an operation before has rotated, maybe normalised, and split off the packed ones."""
        write = self.met[index]
        rotary = self.made_for(write.read("key"), ("rotary_apart", "rotary_normed"), index)
        if rotary is None:
            return None
        turned = self.met[rotary]
        sizes, uniforms = turned.kernel.at, turned.kernel.uniforms
        heads, kv_heads = vector(uniforms["q_global_shape"])[2], vector(uniforms["k_global_shape"])[2]
        head, capacity = turned.kernel.number("head_size"), vector(write.kernel.uniforms["present_key_shape"])[2]
        query, key, value = turned.read("q_input"), turned.read("k_input"), write.read("value")
        passed = {index, rotary}
        readers = {"q": rotary, "k": rotary, "v": index}
        norms = None
        if turned.kernel.kind == "rotary_normed":
            epsilon = turned.kernel.real("qk_norm_epsilon")
            norms = HeadNorms(sizes["q_norm_weight"], sizes["k_norm_weight"], epsilon)
        else:
            q_norm, k_norm = (self.made_for(made, ("head_norm",), rotary) for made in (query, key))
            if q_norm is not None and k_norm is not None:
                by = [self.met[norm].kernel for norm in (q_norm, k_norm)]
                counts = [(each.number("norm_count"), each.number("norm_size")) for each in by]
                if counts != [(heads, head), (kv_heads, head)] or by[0].real("epsilon") != by[1].real("epsilon"):
                    return None
                norms = HeadNorms(by[0].at["scale"], by[1].at["scale"], by[0].real("epsilon"))
                query, key = self.met[q_norm].read("x"), self.met[k_norm].read("x")
                passed |= {q_norm, k_norm}
                readers |= {"q": q_norm, "k": k_norm}
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
        if (
            vector(uniforms["cos_cache_shape"])[0] < capacity
            or vector(write.kernel.uniforms["key_shape"])[2] != kv_heads
        ):
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
        )


def vector(value: Number) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def grouped(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Norms, rotary embedding, split attention and its join, where nothing else reads what passes between them, as
    one."""
    finder = Finder(graph, met)
    by_index = finder.by_index
    replaced: dict[int, Node | None] = {}
    for index, found in met.items():
        origin = finder.origin(index)
        if origin is None:
            continue
        at, written = found.kernel.at, found.writes
        split = finder.only_reader(origin.query, "attention_split")
        if split is None or finder.only_reader(written[at["indirect_buffer"]], "attention_split") != split:
            continue
        partial = met[split].kernel
        caches = (at["present_key"], at["present_value"])
        reads = {graph.homes[value]: value for value in by_index[index].reads}
        filled = {written[cache] for cache in caches}
        if not filled <= set(by_index[split].reads) or not graph.last.keys() >= set(caches):
            # Attention of ours is over what the recorded kernel has put into caches that outlive the step.
            continue
        join = finder.only_reader(met[split].writes[partial.at["out_split_vx"]], *JOINS)
        if join is None or finder.only_reader(met[split].writes[partial.at["metadata"]], *JOINS) != join:
            continue
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
            sinks=met[join].kernel.at.get("head_sink"),
        )
        if not fits_attention(what):
            continue
        gone = origin.indices | {split}
        replaced |= dict.fromkeys(gone)
        replaced[join] = Node(
            what,
            (origin.packed, *(reads[cache] for cache in caches)),
            (met[join].writes[met[join].kernel.at["output"]], *(written[cache] for cache in caches)),
            join,
            gone | {join},
        )
    kept: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Recorded) and node.what.index in replaced:
            joined = replaced[node.what.index]
            kept += [joined] if joined else []
        else:
            kept.append(node)
    return replace(graph, nodes=tuple(kept))


def rotates_whole_heads(kernel: OrtKernel) -> bool:
    """One token, every element of a head rotated with its partner in the other half."""
    query, key = vector(kernel.uniforms["q_global_shape"]), vector(kernel.uniforms["k_global_shape"])
    half = vector(kernel.uniforms["cos_cache_shape"])[1]
    one = query[:2] == key[:2] == (1, 1) and query[3] == key[3] == half
    return one and 2 * half == kernel.number("head_size")


def writes_one_token(kernel: OrtKernel) -> bool:
    shape = vector(kernel.uniforms["key_shape"])
    return shape[:2] == (1, 1) and kernel.number("kv_sequence_length") == 1 and kernel.number("batch_size") == 1


APART = ("q_input", "k_input", "seqlens", "cos_cache", "sin_cache")
APART_LINES = (
    "let qj = qi + select(half_rotary_dim, 1u, false);",
    "let kj = ki + select(half_rotary_dim, 1u, false);",
    "let q_re = q_at_qi * cos_v - q_at_qj * sin_v;",
    "let k_im = k_at_ki * sin_v + k_at_kj * cos_v;",
    "select(total_seqlen - uniforms.q_global_shape[1], 0u, total_seqlen <= uniforms.q_global_shape[1])",
)


JOIN_LINES = ("metadata[meta_base + i].x", "m_value.y * exp(m_value.x - g_max)")
SINK_LINES = (
    "let sink_value = f32(head_sink[head_idx_for_sink]);",
    "g_max = max(g_max, sink_value);",
    "g_sum += exp(sink_value - g_max);",
)


def rotary(kind: str, element: str, pairs: tuple[str, ...]) -> Signature:
    """The kernel that takes packed q, k and v apart, rotates q and k, and writes the caches; its arrays are of
    `element`, and `pairs` are the lines that say which elements are rotated with each other."""
    return Signature(
        kind,
        "attention",
        (
            "packed_qkv",
            "seqlens",
            "cos_cache",
            "sin_cache",
            "total_sequence_length_input",
            "query",
            "present_key",
            "present_value",
            "indirect_buffer",
        ),
        has=(
            f"packed_qkv: array<{element}",
            f"present_key: array<{element}",
            f"present_value: array<{element}",
            "let base_position = 0u;",
            *pairs,
            "let q_re = q_i * cos_v - q_j * sin_v;",
            "let k_im = k_i * sin_v + k_j * cos_v;",
            "let actual_idx = uniforms.half_rotary_dim + in_head_idx;",
        ),
        asked=("num_heads", "kv_num_heads", "head_size", "half_rotary_dim", "present_sequence_length"),
        weights=("cos_cache", "sin_cache"),
        holds=one_token,
    )


RULES = Rules(
    (
        rotary("rotary", "vec4<f", ("let idx_i = in_head_idx;", "let idx_j = idx_i + uniforms.half_rotary_dim;")),
        rotary("rotary_interleaved", "f", ("let idx_i = in_head_idx + in_head_idx;", "let idx_j = idx_i + 1u;")),
        Signature(
            "attention_split",
            "attention",
            (
                "q",
                "present_key",
                "present_value",
                "seqlens_k",
                "total_sequence_length_input",
                "indirect_buffer",
                "out_split_vx",
                "metadata",
            ),
            has=("q: array<vec4<f", "return q_element_t(0);", "q_element_t(uniforms.alpha)", "exp(f32(tile_qk"),
            asked=("alpha",),
            lacks=ATTENTION_LACKS,
            holds=one_query,
        ),
        Signature(
            "attention_join",
            "attention",
            ("input", "metadata", "seqlens_k", "output"),
            has=JOIN_LINES,
            asked=(),
            lacks=ATTENTION_LACKS,
            holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
        ),
        Signature(
            "attention_join_sinks",
            "attention",
            ("input", "metadata", "seqlens_k", "head_sink", "output"),
            has=(*JOIN_LINES, *SINK_LINES),
            asked=(),
            weights=("head_sink",),
            lacks=tuple(other for other in ATTENTION_LACKS if other != "head_sink"),
            holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
        ),
        Signature(
            "qkv_split",
            "attention",
            ("input", "output_0", "output_1", "output_2"),
            has=(
                "input: array<vec4<f",
                "let segment_size = uniforms.segment_sizes[2];",
                "output_2[outer_index * segment_size + within_outer - segment_start]=input[global_idx];",
            ),
            asked=("segment_sizes",),
            holds=lambda kernel: kernel.uniforms["input_size"] == kernel.uniforms["total_segment_elements"],
        ),
        Signature(
            "head_norm",
            "attention",
            ("x", "scale", "y"),
            has=("inverseSqrt(", "uniforms.norm_size", "x_element_t(inv_std_dev) * scale["),
            asked=("norm_count", "norm_size", "epsilon"),
            weights=("scale",),
            lacks=NORM_LACKS,
            holds=lambda kernel: kernel.number("norm_count") > 1,
        ),
        Signature(
            "rotary_apart",
            "attention",
            (*APART, "q_output", "k_output"),
            has=(*APART_LINES, "let q_at_qi = q_input[qi];", "let k_at_kj = k_input[kj];"),
            asked=("head_size",),
            weights=("cos_cache", "sin_cache"),
            holds=rotates_whole_heads,
        ),
        Signature(
            "rotary_normed",
            "attention",
            (*APART, "q_norm_weight", "k_norm_weight", "q_output", "k_output"),
            has=(
                *APART_LINES,
                "inverseSqrt(q_sumsq / f32(uniforms.head_size) + uniforms.qk_norm_epsilon)",
                "inverseSqrt(k_sumsq / f32(uniforms.head_size) + uniforms.qk_norm_epsilon)",
                "let q_at_qi = (q_input[qi] * q_inv_rms * q_norm_weight[bsnh[3]]);",
                "let k_at_kj = (k_input[kj] * k_inv_rms * k_norm_weight[(bsnh[3] + half_rotary_dim)]);",
            ),
            asked=("head_size", "qk_norm_epsilon"),
            weights=("cos_cache", "sin_cache", "q_norm_weight", "k_norm_weight"),
            holds=rotates_whole_heads,
        ),
        Signature(
            "cache_write",
            "attention",
            (
                "key",
                "value",
                "seqlen_k",
                "total_sequence_length_input",
                "present_key",
                "present_value",
                "indirect_buffer",
            ),
            has=(
                "present_key: array<vec4<f",
                "present_value: array<vec4<f",
                "present_key_indices_t(batch, num_head_id, past_sequence_length + sequence_id, head_size_id)",
                "present_key[present_offset]=key[offset];",
                "present_value[present_offset]=value[offset];",
            ),
            asked=("present_key_shape", "key_shape"),
            holds=writes_one_token,
        ),
    ),
    groups={"attention": grouped},
)
