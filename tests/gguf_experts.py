"""Mixtures of experts in small GGUF models: their tensors, and what they compute by definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capstan.model_files.gguf.header import GgmlType

__all__ = ["EXPERTS", "EXPERT_TYPES", "WITH_EXPERTS", "expert_shapes", "mixed"]

Floats = NDArray[np.float32]
ALPHA, LIMIT = 1.702, 7.0

EXPERTS: dict[str, int] = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 64}
EXPERT_TYPES = {"ffn_gate_exps": GgmlType.Q4_0, "ffn_up_exps": GgmlType.Q4_0, "ffn_down_exps": GgmlType.Q8_0}
WITH_EXPERTS = ("qwen3moe", "granitemoe", "gpt-oss")


def expert_shapes(told: Mapping[str, Any], biased: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's experts, in place of those of an MLP."""
    hidden, count, used = (told[key] for key in ("embedding_length", "expert_count", "expert_used_count"))
    inner = told.get("expert_feed_forward_length", told["feed_forward_length"] // used)
    found: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_gate_exps.weight": (count, inner, hidden),
        "ffn_up_exps.weight": (count, inner, hidden),
        "ffn_down_exps.weight": (count, hidden, inner),
    }
    biases = {name.replace("weight", "bias"): dims[:-1] for name, dims in found.items()}
    return {**found, **(biases if biased else {})}


def mixed(n: Floats, of: Any, used: int) -> Floats:
    """The sum of the chosen experts' results for each position; `of` gives a tensor of the layer. With biases, gate and
    up are bounded, as in gpt-oss."""

    def product(name: str, x: Floats, expert: int | None = None) -> Floats:
        weight, bias = of(f"{name}.weight"), of(f"{name}.bias")
        bias = np.zeros(weight.shape[:-1], np.float32) if bias is None else bias
        made: Floats = weight @ x + bias if expert is None else weight[expert] @ x + bias[expert]
        return made

    made = np.zeros_like(n)
    for position, x in enumerate(n):
        row = product("ffn_gate_inp", x)
        chosen = np.argsort(-row)[:used]
        shares = np.exp(row[chosen] - row[chosen].max())
        for expert, share in zip(chosen, shares / shares.sum(), strict=True):
            gate, up = (product(f"ffn_{name}_exps", x, expert) for name in ("gate", "up"))
            if of("ffn_gate_exps.bias") is None:
                inner = gate / (1 + np.exp(-gate)) * up
            else:
                gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
                inner = gate / (1 + np.exp(-ALPHA * gate)) * (up + 1)
            made[position] += share * product("ffn_down_exps", inner, expert)
    return made
