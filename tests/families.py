"""The families of decoders that the model builder of onnxruntime-genai 0.18 writes, each by one nano model.

Families differ in their graphs: several names of `model.type` stand for one kind of graph.
tests/browser/test_families.py runs some of them, `benches/families.py` all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import oracle

__all__ = ["COUNT", "FAMILIES", "PROMPTS", "Family", "Found", "measured"]

FIXTURES = Path(__file__).parent / "fixtures"
COUNT = 96
"""Tokens picked after each prompt."""
PROMPTS = ([5, 6, 7, 8, 9], [(31 * i + 7) % 253 for i in range(70)])
DEVICES = ("webgpu", "wasm")


@dataclass(frozen=True)
class Family:
    """One kind of graph."""

    types: str
    """Names of `model.type` that have it."""
    fixture: str
    """Below tests/fixtures."""
    apart: str
    """The differences from Llama."""

    @property
    def folder(self) -> Path:
        return FIXTURES / self.fixture

    @property
    def name(self) -> str:
        """The name of the mounted model."""
        return self.folder.name


FAMILIES = (
    Family("llama, internlm2, mistral, mistral3_text, phi3, smollm3", "nano-llama", ""),
    Family("qwen2", "nano-qwen2", "biases of q, k and v"),
    Family("qwen3", "nano-qwen3", "norms of q and k"),
    Family("granite, granitemoehybrid (dense)", "nano-granite", "scaled embedding, residuals, scores and logits"),
    Family("gemma2", "nano-gemma2", "soft caps, windows, GELU gates, norms after each half of a layer"),
    Family("gemma3_text, gemma3_vl_text", "nano-gemma3", "windows, norms of q and k, two rotary tables, GELU gates"),
    Family(
        "gemma4_text",
        "families/gemma4_text",
        "as gemma3_text, with heads and caches of two sizes, norms of v, factors of layers",
    ),
    Family("gemma", "families/gemma", "GELU gates, scaled embedding"),
    Family("olmo", "families/olmo", "LayerNorm without weights"),
    Family("phi", "families/phi", "LayerNorm and products with biases, no gates, rotary of half a head"),
    Family("phi3 (Phi-4-mini)", "nano-phi4", "rotary of half a head"),
    Family("nemotron", "families/nemotron", "LayerNorm with biases, squared ReLU, no gates, rotary of half a head"),
    Family("ernie4_5", "nano-ernie", "interleaved rotary"),
    Family("chatglm", "families/chatglm", "interleaved rotary of half a head, biases of q, k and v"),
    Family("hunyuandensev1", "families/hunyuandensev1", "norms of q and k after rotary"),
    Family(
        "lfm2, lfm2_vl_text, lfm2_audio_text",
        "families/lfm2",
        "convolutions with a state in some layers, norms of q and k",
    ),
    Family("lfm2_moe", "families/lfm2_moe", "as lfm2, and int4 experts (QMoE) whose scores have a bias"),
    Family("qwen2_5_vl_text", "families/qwen2_5_vl_text", "positions of three axes, biases of q, k and v"),
    Family("qwen3_vl_text", "families/qwen3_vl_text", "positions of three axes, norms of q and k"),
    Family("qwen3_5_text", "families/qwen3_5_text", "recurrent states in some layers, positions of three axes"),
    Family(
        "qwen3_5_moe_text",
        "families/qwen3_5_moe_text",
        "as qwen3_5_text, and int4 experts (QMoE) beside one for every token",
    ),
    Family("gptoss", "families/gptoss", "int4 experts (QMoE), attention sinks, windows"),
)


@dataclass(frozen=True)
class Found:
    """A family on one device."""

    equal: int
    """Tokens, of all prompts together, up to the first of each that is not onnxruntime-genai's."""
    capture: str
    note: str | None
    passes: dict[str, str]
    error: str = ""


def measured(family: Family, device: str, drive: Callable[..., dict[str, Any]]) -> Found:
    """The family's model after each prompt, against onnxruntime-genai; `drive` is the page script of that name."""
    equal = 0
    last: dict[str, Any] = {}
    for prompt in PROMPTS:
        actions = [("append", prompt), ("generate", COUNT)]
        last = drive(model=family.name, actions=actions, device=device)
        wanted = oracle.greedy(family.folder, prompt, COUNT)
        picked = last["picked"]
        same = [mine == theirs for mine, theirs in zip(picked, wanted, strict=False)]
        equal += same.index(False) if False in same else len(same)
    return Found(equal, last["capture"], last["note"], last["passes"])
