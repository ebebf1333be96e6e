"""What is done to every decoder's graph in a page, whatever the device."""

from __future__ import annotations

from .. import graph
from ..config import GenaiConfig
from ..graph.onnx_pb2 import ModelProto

__all__ = ["decoder_graph"]


def decoder_graph(parsed: ModelProto, config: GenaiConfig, device: str) -> tuple[ModelProto, int]:
    """The graph with the logits of the last position only, if it can be asked for them, and the short rotary factors;
    and the most positions that those are for, 0 if it has no others.

    Raises UncomputedError for what onnxruntime-web does not compute on 'webgpu' or 'wasm', UnsupportedModelError.
    """
    decoder = config.decoder
    computed = graph.soft_caps_apart(parsed, decoder.head_size) if device == "webgpu" else parsed
    graph.require_computed(computed, device, decoder.inputs.position_ids)
    kept = graph.keep_last_logits(parsed, decoder.outputs.logits)
    return graph.short_rope(kept, decoder.inputs.attention_mask)
