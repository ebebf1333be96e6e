"""What prefill runs compute of many positions at once: products, and the int8 that they take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MatMul", "Quantize"]


@dataclass(frozen=True)
class Quantize:
    """`rows` rows of `k` elements as int8, and their scales: two values. `group` elements share a scale."""

    rows: int
    k: int
    group: int
    element: str


@dataclass(frozen=True)
class MatMul:
    """`rows` rows of x, each multiplied by W [n, k] in int4 with one scale for each `block` of a row.

    reads are x in int8 and its scales. With `up`, the result is silu(W x) * (W_up x). Buffers of weights by id.
    """

    weights: int
    scales: int
    rows: int
    n: int
    k: int
    block: int
    element: str
    up: tuple[int, int] | None = None
    """The other half of a gated layer: weights and scales."""
