"""What is done to every decoder's graph in a page, whatever the device."""

from __future__ import annotations

from .. import graph
from ..config import GenaiConfig
from ..errors import UnsupportedModelError
from ..graph.onnx_pb2 import ModelProto

__all__ = ["decoder_graph"]


def decoder_graph(parsed: ModelProto, config: GenaiConfig, device: str) -> tuple[ModelProto, int]:
    """The graph with the logits of the last position only, if it can be asked for them, and the short rotary factors;
    and the most positions that those are for, 0 if it has no others.

    Raises UncomputedError for what onnxruntime-web does not compute on 'webgpu' or 'wasm', UnsupportedModelError.
    """
    decoder = config.decoder
    parsed = with_group_query_attention(parsed, config)
    computed = graph.soft_caps_apart(parsed, decoder.head_size) if device == "webgpu" else parsed
    graph.require_computed(computed, device, decoder.inputs.position_ids)
    kept = graph.keep_last_logits(parsed, decoder.outputs.logits)
    return graph.short_rope(kept, decoder.inputs.attention_mask)


def with_group_query_attention(parsed: ModelProto, config: GenaiConfig) -> ModelProto:
    """The graph, with caches of one size in place of caches that are longer after each run.

    Raises UnsupportedModelError, with the node that is not understood, where it has such caches all the same.
    """
    decoder = config.decoder
    layers: dict[int, list[graph.CachePair]] = {}
    for pair in graph.cache_pairs(decoder):
        layers.setdefault(pair.layer, []).append(pair)
    caches = [(key.past, value.past, key.present, value.present) for key, value in layers.values()]
    heads = (decoder.num_attention_heads, decoder.num_key_value_heads, decoder.head_size)
    names = decoder.inputs
    rewritten, reason = graph.group_query_attention(
        parsed, caches, heads, config.context_length, names.attention_mask, names.position_ids
    )
    if reason:
        raise UnsupportedModelError(
            f"the caches are longer after each run, Capstan's have one size, and the attention over them was not "
            f"recognised: {reason}; take an export with GroupQueryAttention, as onnxruntime-genai's model builder "
            "writes it"
        )
    return rewritten if rewritten is parsed else graph.simplified_norms(rewritten)
