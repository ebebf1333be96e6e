"""Reads repositories of text models whose embeddings are a graph of their own (Gemma 4 E2B and E4B), in the layout of
Transformers.js.

config.json, generation_config.json, tokenizer.json, ...
onnx/decoder_model_merged.onnx, onnx/embed_tokens.onnx, and their other dtypes

The embedding graph also makes an input of each layer. Layers that share the caches of others have none. Encoders of
pictures and sounds beside are not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..model_files.genai_config import DECODER
from .found_model import FoundModel
from .repository import LAYERS, REMEDY, derived_config, field, text_part

__all__ = ["EMBEDDED", "EMBEDDED_TYPES", "embedded_model"]

EMBEDDED = ("decoder_model_merged", "embed_tokens")
"""The names of the graphs."""
EMBEDDED_TYPES = ("gemma4",)


def embedded_model(
    config: bytes, generation: bytes | None, graphs: Sequence[bytes], files: Sequence[str], folder: str
) -> tuple[FoundModel, tuple[str, ...]]:
    """The model of the graphs of EMBEDDED, which are one graph from here on, and the options of generation_config.json
    that have no effect. Raises ConfigError, UnsupportedModelError.
    """
    from ..graph import parse, serialize  # noqa: PLC0415  (protobuf is for repositories only)
    from ..graph.spliced_embedding import embedding_before  # noqa: PLC0415

    _, text, fields = text_part(config, folder)
    layers, shared = field(text, LAYERS), text.value.get("num_kv_shared_layers") or 0
    if type(shared) is not int or not 0 <= shared < layers:
        raise text.error("num_kv_shared_layers", f"a number of layers from 0 to {layers - 1}", REMEDY)
    described = {**fields, "num_hidden_layers": layers - shared}
    decoder, embedding = (parse(data, folder + file) for data, file in zip(graphs, files, strict=True))
    model = embedding_before(decoder, embedding, files[1])
    found, in_vain = derived_config(json.dumps(described).encode(), generation, model, files[0], folder)
    return FoundModel(found, {DECODER: serialize(model)}), in_vain
