"""Small random models of Gemma 4 in GGUF: the shapes of their tensors, and what they compute by definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .gguf_models import Made

__all__ = ["GEMMA4", "gemma4_logits", "gemma4_shapes", "proportional"]

Floats = NDArray[np.float32]
Rotate = Callable[[Floats, NDArray[np.float64], bool], Floats]

GEMMA4: dict[str, Any] = {
    "block_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 128,
    "attention.key_length_swa": 64,
    "attention.value_length": 128,
    "attention.value_length_swa": 64,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": (True, False, True, False),
    "attention.shared_kv_layers": 2,
    "embedding_length_per_layer_input": 256,
    "feed_forward_length": (512, 512, 1024, 1024),
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 10000.0,
    "rope.dimension_count": 128,
    "rope.dimension_count_swa": 64,
    "final_logit_softcapping": 3.0,
}
"""As the smallest ones: layers behind the second read caches of others."""


def gemma4_shapes(shapes: Mapping[str, tuple[int, ...]], told: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors, given those of layers that are all alike."""
    hidden, heads, layers = (told[key] for key in ("embedding_length", "attention.head_count", "block_count"))
    full = told["attention.key_length"]
    local, size = told.get("attention.key_length_swa", full), told["embedding_length_per_layer_input"]
    by_layer = told["attention.head_count_kv"]
    found = {**shapes, "rope_freqs.weight": (full // 2,)}
    if size:
        found["per_layer_token_embd.weight"] = (shapes["token_embd.weight"][0], layers * size)
        found |= {"per_layer_model_proj.weight": (layers * size, hidden), "per_layer_proj_norm.weight": (size,)}
    for layer in range(layers):
        front, window = f"blk.{layer}.", told["attention.sliding_window_pattern"][layer]
        head, kv = local if window else full, by_layer[layer] if isinstance(by_layer, tuple) else by_layer
        inner = told["feed_forward_length"]
        inner = inner[layer] if isinstance(inner, tuple) else inner
        own = {
            "attn_q.weight": (heads * head, hidden),
            "attn_k.weight": (kv * head, hidden),
            "attn_v.weight": (kv * head, hidden),
            "attn_output.weight": (hidden, heads * head),
            "attn_q_norm.weight": (head,),
            "attn_k_norm.weight": (head,),
            "ffn_gate.weight": (inner, hidden),
            "ffn_up.weight": (inner, hidden),
            "ffn_down.weight": (hidden, inner),
            "layer_output_scale.weight": (1,),
        }
        if size:
            own |= {"inp_gate.weight": (size, hidden), "proj.weight": (hidden, size), "post_norm.weight": (hidden,)}
        if told.get("attention.shared_kv_layers", 0) == 0 and not window:
            del found[front + "attn_v.weight"], own["attn_v.weight"]
        found |= {front + name: dims for name, dims in own.items()}
    return found


def proportional(count: int) -> bytes:
    """The divisors of frequencies: the last ones are so large that their pairs do not turn."""
    turned = max(1, count // 4)
    return np.array([1.0] * turned + [1e30] * (count - turned), np.float32).tobytes()


def gemma4_logits(made: Made, ids: Sequence[int], rotated: Rotate) -> Floats:
    """The logits of all positions."""
    w, positions, hidden = made.tensors, np.arange(len(ids)), int(made.meta("embedding_length"))
    heads, layers = int(made.meta("attention.head_count")), int(made.meta("block_count"))
    pattern: Any = made.file.metadata[made.file.key("attention.sliding_window_pattern")]
    full, size = int(made.meta("attention.key_length")), int(made.meta("embedding_length_per_layer_input"))
    own = layers - int(made.meta("attention.shared_kv_layers"))
    x = w["token_embd.weight"][list(ids)] * np.float32(sqrt(hidden))
    if size:
        projection = w["per_layer_model_proj.weight"].T / np.float32(sqrt(hidden))
        projected: Floats = np.asarray(x @ projection, np.float32).reshape(len(ids), layers, size)
        table = w["per_layer_token_embd.weight"][list(ids)].reshape(projected.shape) * np.float32(sqrt(size))
        inputs = (made.norm(projected, w["per_layer_proj_norm.weight"]) + table) / np.float32(sqrt(2))
    kept: dict[bool, tuple[Floats, Floats]] = {}
    for layer in range(layers):

        def of(name: str, layer: int = layer) -> Floats:
            return w[f"blk.{layer}.{name}.weight"]

        local = bool(pattern[layer])
        head = int(made.meta("attention.key_length_swa", full)) if local else full
        base = made.meta("rope.freq_base_swa" if local else "rope.freq_base")
        angles = positions[:, None] * base ** (-np.arange(head // 2) / (head // 2))
        angles = angles if local else angles / w["rope_freqs.weight"]
        n = made.norm(x, of("attn_norm"))

        def split(made_: Floats, head: int = head) -> Floats:
            return made_.reshape(len(ids), -1, head).swapaxes(0, 1)

        q = rotated(made.norm(split(n @ of("attn_q").T), of("attn_q_norm")), angles, False)
        if layer < own:
            k = split(n @ of("attn_k").T)
            v = split(n @ of("attn_v").T) if f"blk.{layer}.attn_v.weight" in w else k
            normed = made.norm(v, np.ones(head, np.float32))
            kept[local] = rotated(made.norm(k, of("attn_k_norm")), angles, False), normed
        k, v = (np.repeat(each, heads // len(each), axis=0) for each in kept[local])
        apart = positions[:, None] - positions
        hidden_ones = (apart < 0) | (local & (apart >= made.meta("attention.sliding_window")))
        scores = np.where(hidden_ones, -np.inf, q @ k.swapaxes(1, 2))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + made.norm(mixed @ of("attn_output").T, of("post_attention_norm"))
        n = made.norm(x, of("ffn_norm"))
        x = x + made.norm((gelu(n @ of("ffn_gate").T) * (n @ of("ffn_up").T)) @ of("ffn_down").T, of("post_ffw_norm"))
        if size:
            gated = gelu(x @ of("inp_gate").T) * inputs[:, layer]
            x = x + made.norm(np.asarray(gated @ of("proj").T, np.float32), of("post_norm"))
        x = x * of("layer_output_scale")
    logits = made.norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
    if cap := made.meta("final_logit_softcapping"):
        logits = np.tanh(logits / cap) * cap
    return np.asarray(logits, np.float32)


def gelu(x: NDArray[Any]) -> Floats:
    return np.asarray(x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2, np.float32)
