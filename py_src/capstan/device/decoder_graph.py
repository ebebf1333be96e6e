"""The rewrites of every decoder's graph in a page, for any device."""

from __future__ import annotations

from typing import NamedTuple

from .. import graph
from ..fallback import fall_back
from ..graph import GraphDescription
from ..graph.onnx_pb2 import ModelProto
from ..model_files.config import GenaiConfig

__all__ = ["DecoderGraph", "decoder_graph", "tell_growing"]


class DecoderGraph(NamedTuple):
    """A decoder's graph with the logits of the last position only, if it can be asked for them, and the short rotary
    factors."""

    model: ModelProto
    short_rope_to: int
    """The most positions that its rotary factors are for, 0 if it has no others."""
    unrecognised: str
    """Why its attention over caches that grow was not recognised; empty if it was, or if there is none."""


def decoder_graph(parsed: ModelProto, config: GenaiConfig, device: str) -> DecoderGraph:
    """The graph as a session is made of it: on 'wasm' with the norms of q and k before attention.

    Raises UncomputedError for nodes that onnxruntime-web does not compute on 'webgpu' or 'wasm', UnsupportedModelError.
    """
    decoder = config.decoder
    parsed = graph.plain_recurrence(graph.text_positions(parsed, decoder.inputs.position_ids))
    parsed, unrecognised = with_group_query_attention(parsed, config)
    if device == "wasm":
        parsed = graph.norms_apart(parsed)
    head_sizes = {pair.past: pair.head_size for pair in graph.cache_pairs(decoder, parsed.graph)}
    computed = graph.soft_caps_apart(parsed, head_sizes) if device == "webgpu" else parsed
    graph.require_computed(computed, device, decoder.inputs.position_ids)
    kept = graph.keep_last_logits(parsed, decoder.outputs.logits)
    return DecoderGraph(*graph.short_rope(kept, decoder.inputs.attention_mask), unrecognised)


def with_group_query_attention(parsed: ModelProto, config: GenaiConfig) -> tuple[ModelProto, str]:
    """The graph, with caches of one size in place of caches that are longer after each run, or why they are not."""
    decoder = config.decoder
    layers: dict[int, list[graph.CachePair]] = {}
    for pair in graph.cache_pairs(decoder, parsed.graph):
        layers.setdefault(pair.layer, []).append(pair)
    caches = [(key.past, value.past, key.present, value.present) for key, value in layers.values()]
    sizes = {(pair.heads, pair.head_size) for pairs in layers.values() for pair in pairs}
    if len(sizes) != 1:
        return parsed, "its layers have caches of different sizes"
    heads = (decoder.num_attention_heads, *sizes.pop())
    names = decoder.inputs
    rewritten, reason = graph.group_query_attention(
        parsed, caches, heads, config.context_length, names.attention_mask, names.position_ids
    )
    return (rewritten, reason) if rewritten is parsed else (graph.simplified_norms(rewritten), reason)


def tell_growing(about: GraphDescription) -> None:
    """Count caches that grow as a step down, with its reason."""
    if about.growing:
        instead = "caches grow with each run, and decode steps are run eagerly"
        fall_back("attention over caches of one size", about.growing, instead)
