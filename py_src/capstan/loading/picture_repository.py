"""Reads repositories of models that see pictures in tiles (Idefics 3, SmolVLM), in the layout of Transformers.js.

config.json, generation_config.json, preprocessor_config.json, tokenizer.json, ...
onnx/decoder_model_merged.onnx, onnx/embed_tokens.onnx, onnx/vision_encoder.onnx, and their other dtypes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..model_files.genai_config import EmbeddingNames, GenaiConfig, VisionConfig
from .repository import REMEDY, derived_config, field, text_part

if TYPE_CHECKING:
    from ..graph.onnx_pb2 import ModelProto

__all__ = ["SEEING", "TILED_TYPES", "seeing_config"]

TILED_TYPES = ("idefics3", "smolvlm")
SEEING = ("decoder_model_merged", "embed_tokens", "vision_encoder")
"""The names of the graphs."""


def seeing_config(
    config: bytes, generation: bytes | None, decoder: ModelProto, files: Sequence[str], folder: str
) -> tuple[GenaiConfig, tuple[str, ...]]:
    """Make the genai_config.json for the files of SEEING, and list the options of generation_config.json that have no
    effect. Raises ConfigError.
    """
    root, _, fields = text_part(config, folder)
    vision = root.section("vision_config")
    described = {**fields, "model_type": root.text("model_type")}
    found, in_vain = derived_config(json.dumps(described).encode(), generation, decoder, files[0], folder)
    side, patch = field(vision, ("image_size",)), field(vision, ("patch_size",))
    scale = field(root, ("scale_factor",))
    placeholder = root.token("image_token_id", found.vocab_size)
    if placeholder is None:
        raise root.error("image_token_id", "a token id", REMEDY)
    names = EmbeddingNames(
        filename=files[1], input_ids="input_ids", features="", embeddings="inputs_embeds", target="inputs_embeds"
    )
    about = VisionConfig(
        filename=files[2],
        pixels="pixel_values",
        features="image_features",
        processor="preprocessor_config.json",
        embedding=names,
        mask="pixel_attention_mask",
        placeholder=placeholder,
        places=(side // patch) ** 2 // scale**2,
    )
    return replace(found, vision=about), in_vain
