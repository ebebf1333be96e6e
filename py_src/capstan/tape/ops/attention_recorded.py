"""Recognises attention of one new token in a recorded step: norms, rotary embedding, cache write, attention, join."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..ort_kernels import Met, Rules
from ..step_graph import Node, StepGraph
from .attention import Attention, HeadNorms
from .attention_finder import Finder, recorded_as
from .attention_plan import IN_4_BITS, fits_attention
from .attention_signatures import HEAD_NORMS, SIGNATURES, vector
from .head_gate import HeadGate

__all__ = ["RULES", "with_joined"]

SPLITS = {0: "attention_split", 8: "attention_split_int8", 4: "attention_split_int4"}
"""Signatures by the bits of the caches."""


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
        gate = finder.gate(result, origin.gates) if origin.gates is not None else None
        if (gate is None) != (origin.gates is None):
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
            cache_bits=origin.cache_bits,
            sinks=met[join].kernel.at.get("head_sink"),
            gated=gate is not None,
        )
        if not fits_attention(what):
            continue
        if gate is not None:
            width = (2 * what.heads + 2 * what.kv_heads) * what.head
            multiplied = HeadGate(what.heads, what.head, width, what.element)
            writes = (met[gate[-1]].written("output"),)
            replaced |= dict.fromkeys(gate)
            replaced[gate[-1]] = Node(multiplied, (result, origin.packed), writes, gate[-1], frozenset(gate))
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
