"""Small GGUF models whose metadata say something each, for llama.cpp's scores of them (fixtures/gguf_scores.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capstan.model_files.gguf.header import GgmlType
from tests.gguf_experts import EXPERTS
from tests.gguf_gemma4 import GEMMA4
from tests.gguf_models import FIXTURES, Made, make

__all__ = ["CASES", "QWEN35", "SCORED", "SCORES", "Case", "ids_of", "scores"]

SCORES = FIXTURES / "gguf_scores.json"
COMMON: dict[str, Any] = {"context_length": 1024, "feed_forward_length": 256}
SIX: dict[str, Any] = {"block_count": 6, "attention.sliding_window": 8}
SMALL_GEMMA4: dict[str, Any] = {
    **GEMMA4,
    "embedding_length_per_layer_input": 32,
    "feed_forward_length": (256, 256, 512, 512),
}
LARGE_GEMMA4: dict[str, Any] = {
    **SMALL_GEMMA4,
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "feed_forward_length": 256,
    "attention.head_count_kv": (2, 1, 2, 1),
}
"""As the ones without embeddings of layers: where a layer sees all positions, its values are its keys."""
GRANITE: dict[str, Any] = {"logit_scale": 2.0}
GRANITE_4: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 512,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 1,
    "rope.scaling.finetuned": True,
    "attention.head_count_kv": (2, 2),
}
"""As converted from a model whose layers all have attention."""
LFM2: dict[str, Any] = {"block_count": 4, "attention.head_count_kv": (0, 2, 0, 2), "shortconv.l_cache": 3}
QWEN35: dict[str, Any] = {
    "block_count": 4,
    "full_attention_interval": 2,
    "rope.dimension_count": 32,
    "rope.dimension_sections": (6, 5, 5, 0),
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 4,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 128,
}
LONG_ROPE: dict[str, Any] = {
    "rope.dimension_count": 32,
    "rope.scaling.original_context_length": 300,
    "rope.scaling.attn_factor": 1.2,
    "attention.sliding_window": 0,
}
GPT_OSS: dict[str, Any] = {**EXPERTS, "block_count": 3, "attention.sliding_window": 8}
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 24,
}
SCORED = 6
"""The last ids of a sequence, which are scored."""


@dataclass(frozen=True)
class Case:
    """A model by its family and its metadata besides the sizes, with the length of its sequence."""

    family: str
    given: Mapping[str, Any] = field(default_factory=dict)
    length: int = 40
    same_as: str = ""
    """The case that computes the same, if there is one; else the scores are others than without what is `given`."""

    @property
    def made(self) -> Made:
        tied = self.family != "gpt-oss"
        return make(self.family, {"": GgmlType.F32}, {**COMMON, **self.given}, tied, vocabulary=512)


def ids_of(length: int) -> list[int]:
    """The ids of a sequence."""
    return [(37 * place + 11) % 500 + 4 for place in range(length)]


CASES: Mapping[str, Case] = {
    "llama": Case("llama"),
    "linear, which is the type without one": Case("llama", {"rope.scaling.factor": 4.0}),
    "an old name": Case("llama", {"rope.scale_linear": 4.0}, same_as="linear, which is the type without one"),
    "both names": Case(
        "llama",
        {"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0},
        same_as="linear, which is the type without one",
    ),
    "a factor of 0": Case("llama", {"rope.scaling.factor": 0.0}, same_as="llama"),
    "no scaling": Case("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, same_as="llama"),
    "a factor of waves": Case("llama", {"rope.scaling.attn_factor": 1.5}),
    "yarn": Case("llama", YARN),
    "yarn and a factor of waves": Case("llama", {**YARN, "rope.scaling.attn_factor": 0.5}),
    "yarn of qwen3": Case("qwen3", {**YARN, "rope.freq_base": 1e6}),
    "divisors": Case("llama", {"rope.freq_base": 10000.0}),
    "kv heads left out": Case("llama", {"attention.head_count_kv": None}),
    "qwen2": Case("qwen2"),
    "qwen3": Case("qwen3"),
    "smollm3": Case("smollm3", {"block_count": 5}),
    "gemma2": Case("gemma2", {**SIX, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "soft caps left out": Case("gemma2", SIX, same_as="gemma2"),
    "other soft caps": Case("gemma2", {**SIX, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "no window of gemma2": Case("gemma2", {"block_count": 6}),
    "one in three": Case("gemma2", {**SIX, "attention.sliding_window_pattern": 3}),
    "another base of windows": Case("gemma2", {**SIX, "rope.freq_base_swa": 500.0}),
    "linear in all layers": Case("gemma2", {**SIX, "rope.scaling.factor": 4.0}),
    "none but in windows": Case("gemma2", {**SIX, "rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "gemma3": Case("gemma3", SIX),
    "gemma3's pattern": Case("gemma3", {**SIX, "attention.sliding_window_pattern": 6}, same_as="gemma3"),
    "gemma3 without a window": Case("gemma3", {"block_count": 6, "rope.freq_base": 1e6}),
    "a window of 0": Case(
        "gemma3",
        {"block_count": 6, "rope.freq_base": 1e6, "attention.sliding_window": 0, "attention.sliding_window_pattern": 2},
        same_as="gemma3 without a window",
    ),
    "windows everywhere": Case("gemma3", {**SIX, "attention.sliding_window_pattern": 0}),
    "windows layer by layer": Case(
        "gemma3", {**SIX, "attention.sliding_window_pattern": (True, False, False, True, False, True)}
    ),
    "gemma3's base of windows": Case("gemma3", {**SIX, "rope.freq_base": 1e6, "rope.freq_base_swa": 500.0}),
    "a soft cap of gemma3's logits": Case("gemma3", {**SIX, "final_logit_softcapping": 3.0}),
    "linear but in windows": Case("gemma3", {**SIX, "rope.scaling.factor": 4.0}),
    "yarn but in windows": Case("gemma3", {**SIX, **YARN}),
    "part of a head of gemma3": Case("gemma3", {**SIX, "rope.dimension_count": 32}),
    "gemma4": Case("gemma4", SMALL_GEMMA4),
    "no caches of others": Case("gemma4", {**SMALL_GEMMA4, "attention.shared_kv_layers": 0}),
    "gemma4 without embeddings of layers": Case("gemma4", LARGE_GEMMA4),
    "gemma4's soft cap left out": Case("gemma4", {**LARGE_GEMMA4, "final_logit_softcapping": None}),
    "the soft cap that it has then": Case(
        "gemma4", {**LARGE_GEMMA4, "final_logit_softcapping": 30.0}, same_as="gemma4's soft cap left out"
    ),
    "no soft cap of gemma4": Case("gemma4", {**LARGE_GEMMA4, "final_logit_softcapping": 0.0}),
    "gemma4's base of windows": Case("gemma4", {**LARGE_GEMMA4, "rope.freq_base_swa": 500.0}),
    "gemma4's base of windows left out": Case(
        "gemma4", {**LARGE_GEMMA4, "rope.freq_base_swa": None}, same_as="gemma4 without embeddings of layers"
    ),
    "linear in gemma4": Case("gemma4", {**LARGE_GEMMA4, "rope.scaling.factor": 4.0}),
    "part of a head of gemma4's windows": Case("gemma4", {**LARGE_GEMMA4, "rope.dimension_count_swa": 32}),
    "heads of one size": Case(
        "gemma4",
        {**LARGE_GEMMA4, "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64},
    ),
    "granite": Case("granite", GRANITE),
    "no rotation": Case("granite", {**GRANITE, "rope.scaling.finetuned": False}),
    "scales of 0": Case(
        "granite", {**GRANITE, "embedding_scale": 0.0, "residual_scale": 0.0, "attention.scale": 0.0}, same_as="granite"
    ),
    "scales": Case("granite", {**GRANITE, "embedding_scale": 4.0, "residual_scale": 0.6, "attention.scale": 0.1}),
    "granite 4": Case("granite", {**GRANITE, **GRANITE_4}, same_as="granite"),
    "lfm2": Case("lfm2", LFM2),
    "a longer convolution": Case("lfm2", {**LFM2, "shortconv.l_cache": 4}),
    "a window of lfm2": Case("lfm2", {**LFM2, "attention.sliding_window": 8}),
    "qwen35": Case("qwen35", QWEN35),
    "more heads of values than of keys": Case("qwen35", {**QWEN35, "ssm.group_count": 2}),
    "layers by a list": Case("qwen35", {**QWEN35, "attention.recurrent_layers": (True, False) * 2}, same_as="qwen35"),
    "qwen3moe": Case("qwen3moe", EXPERTS),
    "one expert a token": Case("qwen3moe", {**EXPERTS, "expert_used_count": 1}),
    "the size of experts left out": Case(
        "qwen3moe",
        {**EXPERTS, "expert_feed_forward_length": None, "feed_forward_length": 128},
        same_as="qwen3moe",
    ),
    "granitemoe": Case("granitemoe", {**EXPERTS, **GRANITE, "feed_forward_length": 64}),
    "scales of granitemoe": Case(
        "granitemoe",
        {
            **EXPERTS,
            **GRANITE,
            "feed_forward_length": 64,
            "embedding_scale": 4.0,
            "residual_scale": 0.6,
            "attention.scale": 0.1,
        },
    ),
    "gpt-oss": Case("gpt-oss", GPT_OSS),
    "gpt-oss with yarn": Case("gpt-oss", {**GPT_OSS, **YARN}),
    "one in three of gpt-oss": Case("gpt-oss", {**GPT_OSS, "attention.sliding_window_pattern": 3}),
    "another base of gpt-oss's windows": Case("gpt-oss", {**GPT_OSS, "rope.freq_base_swa": 500.0}),
    "windows of gpt-oss": Case("gpt-oss", {**GPT_OSS, "attention.sliding_window": 16}),
    "phi3": Case("phi3", {"attention.sliding_window": 0}),
    "part of a head": Case("phi3", {"rope.dimension_count": 32}),
    "short factors": Case("phi3", LONG_ROPE),
    "long factors": Case("phi3", LONG_ROPE, length=310),
}


def scores() -> dict[str, list[float]]:
    """llama.cpp's log probabilities of the scored ids."""
    found: dict[str, list[float]] = json.loads(SCORES.read_text())["scores"]
    return found
