"""Attention in float64: norms, rotary embeddings, and the softmax over positions."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["attended", "rms_norm", "rotated"]

Array = np.ndarray[Any, np.dtype[Any]]


def rms_norm(rows: Array, gamma: Array, epsilon: float) -> Array:
    normed: Array = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + epsilon) * gamma
    return normed


def rotated(rows: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rows of heads, of which the first elements, twice as many as cosines, are rotated: neighbours or halves."""
    half = cos.shape[-1]
    first, second = slice(half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned: Array = rows.copy()
    turned[..., first] = rows[..., first] * cos - rows[..., second] * sin
    turned[..., second] = rows[..., first] * sin + rows[..., second] * cos
    return turned


def attended(
    queries: Array,
    keys: Array,
    values: Array,
    scale: float,
    *,
    seen: Array | None = None,
    softcap: float = 0.0,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """The result [rows, heads, size] and the weights [heads, rows, positions].

    Queries are [rows, heads, size], keys and values [kv heads, positions, size]; `seen` is [rows, positions], and a
    sink is one more score of each head.
    """
    heads = queries.shape[1]
    keys, values = (np.repeat(each, heads // len(keys), axis=0) for each in (keys, values))
    scores = np.einsum("mhd,hpd->hmp", queries, keys) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = scores if seen is None else np.where(seen, scores, -np.inf)
    others = np.full(heads, -np.inf) if sinks is None else sinks
    largest = np.maximum(scores.max(axis=2), others[:, None])[..., None]
    weights = np.exp(scores - largest)
    weights = weights / (weights.sum(axis=2, keepdims=True) + np.exp(others[:, None, None] - largest))
    return np.einsum("hmp,hpd->mhd", weights, values), weights
