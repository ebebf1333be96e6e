"""Describes the rows of caches in 8 or 4 bits, as they are saved: blocks of 32 numbers in a type of GGUF files.

A host converts them (`Host.narrow_rows`, `Host.widen_rows`); `reference.narrowed` defines the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..model_files.gguf.gguf_file import GgmlType
from .element_types import byte_count

if TYPE_CHECKING:
    from ..graph import GraphDescription, Unpack

__all__ = ["BITS", "WIDE", "NarrowRows", "require_narrow"]

BLOCK = 32
"""The numbers of a block."""
TYPES: Mapping[int, tuple[GgmlType, int]] = {8: (GgmlType.Q8_0, 34), 4: (GgmlType.Q4_1, 20)}
"""For each number of bits the type, and the bytes of a block."""
BITS = (0, *TYPES)
"""The bits of saved rows; 0 keeps the numbers of the cache."""
WIDE = {"float32": 32, "float16": 16}
"""The types of caches whose rows can be narrowed, with the bits of a number."""


@dataclass(frozen=True)
class NarrowRows:
    """Rows of float16 or float32 caches in blocks of `bits`."""

    dtype: str
    bits: int

    def size(self, wide: int) -> int:
        """The bytes of whole blocks that have `wide` bytes in the cache."""
        return wide // byte_count(self.dtype, (BLOCK,)) * TYPES[self.bits][1]

    def change(self, wide: int) -> Unpack:
        """How `wide` bytes of a cache are made of these blocks."""
        from ..graph import Unpack  # noqa: PLC0415  (protobuf)

        width = WIDE[self.dtype]
        return Unpack(TYPES[self.bits][0], "values", 1, wide * 8 // width, width)


def require_narrow(graph: GraphDescription, bits: int) -> None:
    """Raise OptionError if the rows of these caches cannot be saved in so few bits."""
    if bits not in BITS:
        raise OptionError(f"bits is {bits!r}; saved rows have 8 or 4 bits, or with 0 those of the cache")
    if not bits:
        return
    if graph.cache_bits:
        raise OptionError(f"the caches have {graph.cache_bits} bits, and are saved as they are: leave bits out")
    odd = [pair.head_size for pair in graph.cache if pair.head_size % BLOCK]
    if odd or graph.cache_dtype not in WIDE:
        has = f"heads of {odd[0]} numbers" if odd else f"caches of {graph.cache_dtype}"
        raise OptionError(
            f"the model has {has}; rows can be saved in {bits} bits with heads of a multiple of {BLOCK} numbers in "
            "float16 or float32: leave bits out"
        )
