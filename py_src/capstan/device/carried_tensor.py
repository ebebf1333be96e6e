"""Reads a cache or a state of a sequence from its device."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError
from ..graph import CachePair, GraphDescription, StateTensor
from .element_types import byte_count

__all__ = ["CarriedTensor", "carried"]


@dataclass(frozen=True)
class CarriedTensor:
    """The output of one run for the next: a cache [1, heads, computed positions, head size], or a state in the graph's
    shape.
    """

    dtype: str
    """'float32' or 'float16'."""
    dims: tuple[int, ...]
    data: bytes
    positions: bool = False
    """Whether dimension 2 counts positions, as it does in a cache."""

    @classmethod
    def read(cls, about: GraphDescription, found: CachePair | StateTensor, data: bytes, valid: int) -> CarriedTensor:
        """Reads the first `valid` positions from the bytes of a whole cache, or a whole state."""
        if isinstance(found, StateTensor):
            return cls(found.dtype, found.dims(1), data)
        head, part = len(data) // found.heads, byte_count(about.cache_dtype, (valid, found.head_size))
        kept = [data[place * head : place * head + part] for place in range(found.heads)]
        return cls(about.cache_dtype, found.dims(1, valid), b"".join(kept), positions=True)


def carried(about: GraphDescription, name: str) -> CachePair | StateTensor:
    """The cache or state of the graph's input or output `name`. OptionError if there is none."""
    every: tuple[CachePair | StateTensor, ...] = (*about.cache, *about.states)
    for found in every:
        if name in (found.past, found.present):
            return found
    raise OptionError(f"there is no cache or state {name!r}; the graph has {', '.join(found.past for found in every)}")
