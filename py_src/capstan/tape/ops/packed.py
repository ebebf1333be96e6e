"""Lists the buffers of a matrix product's weights, and of both halves of a gated layer, by the names of
packing.wgsl.

Operations with weights have a field for each name in PACKED (None for a missing buffer) and `up`: the buffers of the
half that multiplies the other, in the same order, without trailing missing ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..operation import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["PACKED", "Half", "gated_by", "weights_of"]

PACKED = ("weights", "scales", "zeros", "minima")
"""Dense weights have no scales."""

Half = tuple[int | None, ...]
Gated = TypeVar("Gated", bound="DataclassInstance")


def weights_of(what: Any) -> dict[str, Buffer]:
    """The buffers of weights that a product binds."""
    names = (*PACKED, *(f"{name}_up" for name in PACKED))
    buffers = (*(getattr(what, name) for name in PACKED), *(what.up or ()))
    return {name: Buffer(buffer) for name, buffer in zip(names, buffers, strict=False) if buffer is not None}


def gated_by(gate: Gated, up: Gated) -> Gated | None:
    """The product silu(gate) * up; None if the two differ in more than the buffers of their weights."""
    buffers: dict[str, Any] = {name: getattr(up, name) for name in PACKED}
    lacking = [[getattr(half, name) is None for name in PACKED] for half in (gate, up)]
    if lacking[0] != lacking[1] or replace(gate, **buffers) != up:
        return None
    half = list(buffers.values())
    while half[-1] is None:
        half.pop()
    both: dict[str, Any] = {"up": tuple(half)}
    return replace(gate, **both)
