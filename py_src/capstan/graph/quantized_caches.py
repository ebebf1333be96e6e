"""Key/value caches whose elements have 8 or 4 bits, as onnxruntime's WebGPU provider packs them.

With the provider's option kvCacheQuantizationBits, GroupQueryAttention writes a head of a position as one float32 scale
and its elements, packed into 32-bit words. The tensors of the caches keep their element type: their last dimension is
as many elements as have those bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnsupportedModelError
from .carried import HEAD_SIZE, CachePair, caches_in_place
from .onnx_pb2 import ModelProto
from .soft_caps import has_soft_caps
from .weights import DTYPES
from .wiring import copy_of

__all__ = ["quantized_caches", "stored_elements"]

SCALE_BITS = 32
LEAST_IN_4_BITS = 8
"""Elements of the smallest head that is quantized to 4 bits: it is rotated by a Hadamard matrix of its size, a power
of two."""


def stored_elements(head_size: int, cache_bits: int, element_bits: int) -> int:
    """Elements of `element_bits` that have the bytes of a head of one position, its scale among them."""
    return (SCALE_BITS + head_size * cache_bits) // element_bits


def quantized_caches(model: ModelProto, pairs: Sequence[CachePair], cache_bits: int) -> ModelProto:
    """The model with such caches in place of `pairs`; `cache_bits` is 4 or 8.

    Raises UnsupportedModelError for caches that not GroupQueryAttention writes, soft caps, and heads of other sizes.
    """
    result = copy_of(model)
    graph = result.graph
    asked = f"a key/value cache in int{cache_bits}"
    remedy = "load the model without kv_cache_dtype, or kvCacheQuantizationBits"
    written = caches_in_place(result)
    for pair in pairs:
        if (pair.past, pair.present) not in written:
            raise UnsupportedModelError(
                f"{asked} needs GroupQueryAttention, which does not write {pair.present}; {remedy}"
            )
        why = unfit(pair.head_size, cache_bits)
        if why:
            raise UnsupportedModelError(
                f"{asked} cannot be: {pair.past} has heads of {pair.head_size} elements, {why}; {remedy}"
            )
    if has_soft_caps(result):
        raise UnsupportedModelError(f"{asked} cannot be with soft caps of attention, which this model has; {remedy}")
    sizes = {name: pair.head_size for pair in pairs for name in (pair.past, pair.present)}
    for value in (*graph.input, *graph.output):
        if value.name in sizes:
            kind = value.type.tensor_type
            bits = DTYPES[kind.elem_type][1]
            kind.shape.dim[HEAD_SIZE].Clear()
            kind.shape.dim[HEAD_SIZE].dim_value = stored_elements(sizes[value.name], cache_bits, bits)
    return result


def unfit(head_size: int, cache_bits: int) -> str:
    """The reason for which heads of a size stay floats; empty if they can be quantized."""
    if cache_bits == 4 and (head_size < LEAST_IN_4_BITS or head_size & (head_size - 1)):
        return f"no power of two from {LEAST_IN_4_BITS} on"
    return "no multiple of 4" if head_size % 4 else ""
