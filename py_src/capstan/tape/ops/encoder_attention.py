"""Recognises attention of one new token over an encoder's outputs in a recorded step: a copy, attention, its join."""

from __future__ import annotations

from collections.abc import Mapping

from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, StepGraph
from .attention import Attention
from .attention_finder import Finder
from .attention_plan import fits_attention
from .attention_recorded import with_joined
from .attention_signatures import ATTENTION_LACKS, JOIN_LINES, QUANTIZED, SPLIT_LINES, one_query, vector

__all__ = ["RULES"]


def copies_all(kernel: OrtKernel) -> bool:
    """Whether the copied buffers hold the same number of positions as the keys and values."""
    sizes = (kernel.number("total_sequence_length"), vector(kernel.uniforms["key_shape"])[2])
    alike = kernel.uniforms["key_shape"] == kernel.uniforms["present_key_shape"]
    return alike and set(sizes) == {kernel.number("kv_sequence_length")} and kernel.number("batch_size") == 1


def one_query_of_all(kernel: OrtKernel) -> bool:
    return one_query(kernel) and kernel.number("total_sequence_length") == kernel.number("present_sequence_length")


def over_encoder(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn a copy of an encoder's outputs, split attention over the copy and its join into one node, which reads the
    outputs themselves.
    """
    finder = Finder(graph, met)
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for index, found in met.items():
        if found.kernel.kind != "cross_split":
            continue
        kernel, join = found.kernel, finder.joined(index, ("cross_join",))
        copies = {
            finder.made_for(found.read(name), ("cross_copy",), index) for name in ("present_key", "present_value")
        }
        copy = copies.pop()
        if join is None or copy is None or copies:
            continue
        caches = (met[copy].read("key"), met[copy].read("value"))
        what = Attention(
            heads=kernel.number("num_heads"),
            kv_heads=kernel.number("num_heads") // kernel.number("n_reps"),
            head=4 * kernel.number("head_size_vec"),
            capacity=kernel.number("present_sequence_length"),
            scale=kernel.real("alpha"),
            cos=0,
            sin=0,
            key=met[copy].kernel.at["key"],
            value=met[copy].kernel.at["value"],
            element=kernel.element,
            prepared=True,
            whole=True,
        )
        if fits_attention(what) and set(caches) <= set(graph.first.values()):
            reads = (found.read("q"), *caches)
            joined[join] = Node(what, reads, (met[join].written("output"),), join, frozenset({copy, index, join}))
            gone |= {copy, index}
    return with_joined(graph, joined, gone)


SIGNATURES = (
    Signature(
        "cross_copy",
        "attention",
        ("key", "value", "present_key", "present_value"),
        has=(
            "present_key: array<vec4<f",
            "present_key_indices_t(batch, num_head_id, sequence_id, head_size_id)",
            "present_key[present_offset]=key[offset];",
            "present_value[present_offset]=value[offset];",
        ),
        asked=("present_key_shape", "key_shape"),
        holds=copies_all,
    ),
    Signature(
        "cross_split",
        "attention",
        ("q", "present_key", "present_value", "out_split_vx", "metadata"),
        has=(
            *SPLIT_LINES,
            "let global_total_sequence_length = uniforms.total_sequence_length;",
            "let valid_key_end = total_sequence_length;",
        ),
        asked=("alpha", "head_size_vec", "n_reps", "num_heads", "present_sequence_length"),
        lacks=(*ATTENTION_LACKS, QUANTIZED),
        holds=one_query_of_all,
    ),
    Signature(
        "cross_join",
        "attention",
        ("input", "metadata", "output"),
        has=(*JOIN_LINES, "let num_total_seq_length_tile = uniforms.num_total_seq_length_tile;"),
        asked=(),
        lacks=ATTENTION_LACKS,
        holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
    ),
)

RULES = Rules(SIGNATURES, groups={"attention": over_encoder})
