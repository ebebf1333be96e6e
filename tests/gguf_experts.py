"""Mixtures of experts in small GGUF models: their tensors, and what they compute by definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capstan.model_files.gguf.header import GgmlType

__all__ = ["EXPERTS", "EXPERT_TYPES", "WITH_EXPERTS", "expert_shapes", "mixed"]

Floats = NDArray[np.float32]

EXPERTS: dict[str, int] = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 64}
EXPERT_TYPES = {"ffn_gate_exps": GgmlType.Q4_0, "ffn_up_exps": GgmlType.Q4_0, "ffn_down_exps": GgmlType.Q8_0}
WITH_EXPERTS = ("qwen3moe",)


def expert_shapes(told: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's experts, in place of those of an MLP."""
    hidden, count, used = (told[key] for key in ("embedding_length", "expert_count", "expert_used_count"))
    inner = told.get("expert_feed_forward_length", told["feed_forward_length"] // used)
    return {
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_gate_exps.weight": (count, inner, hidden),
        "ffn_up_exps.weight": (count, inner, hidden),
        "ffn_down_exps.weight": (count, hidden, inner),
    }


def mixed(n: Floats, of: Any, used: int) -> Floats:
    """The sum of the chosen experts' results for each position; `of` gives a tensor of the layer."""
    scores = n @ of("ffn_gate_inp.weight").T
    made = np.zeros_like(n)
    for position, row in enumerate(scores):
        chosen = np.argsort(-row)[:used]
        shares = np.exp(row[chosen] - row[chosen].max())
        for expert, share in zip(chosen, shares / shares.sum(), strict=True):
            gate, up = (of(f"ffn_{name}_exps.weight")[expert] @ n[position] for name in ("gate", "up"))
            made[position] += share * (of("ffn_down_exps.weight")[expert] @ (gate / (1 + np.exp(-gate)) * up))
    return made
