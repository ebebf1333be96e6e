"""Stores key/value caches in 8 or 4 bits for each element, in the packing of onnxruntime's WebGPU provider.

With the provider's option kvCacheQuantizationBits, GroupQueryAttention writes a head of a position as one float32 scale
and its elements, packed into 32-bit words. The tensors of the caches keep their element type: their last dimension is
the number of elements that take the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import UnsupportedModelError
from .capture import attention_window
from .carried import HEAD_SIZE, CachePair, caches_in_place
from .onnx_pb2 import ModelProto
from .soft_caps import has_soft_caps
from .weight_inputs import DTYPES
from .wiring import copy_of

__all__ = ["fewer_bits", "quantized_caches", "stored_elements", "with_bits"]

QUANTIZED = (8, 4)
"""The possible bits of an element."""
SCALE_BITS = 32
LEAST_IN_4_BITS = 8
"""Elements of the smallest head that is quantized to 4 bits. Such heads are rotated by a Hadamard matrix, whose size is
a power of two.
"""


def stored_elements(head_size: int, cache_bits: int, element_bits: int) -> int:
    """The number of elements of `element_bits` that take the bytes of a head of one position, including its scale."""
    return (SCALE_BITS + head_size * cache_bits) // element_bits


def quantized_caches(model: ModelProto, pairs: Sequence[CachePair], cache_bits: int, longest: int) -> ModelProto:
    """The model with quantized caches in place of `pairs`; `cache_bits` is 4 or 8, `longest` the positions of a
    sequence.

    Raises UnsupportedModelError for caches that GroupQueryAttention does not write, soft caps, windows shorter than
    sequences, and heads of a size that cannot be quantized.
    """
    result = copy_of(model)
    graph = result.graph
    why = why_not(model, pairs, cache_bits, longest)
    if why:
        raise UnsupportedModelError(
            f"a key/value cache in int{cache_bits} {why}; load the model without kv_cache_dtype and "
            "kvCacheQuantizationBits"
        )
    sizes = {name: pair.head_size for pair in pairs for name in (pair.past, pair.present)}
    for value in (*graph.input, *graph.output):
        if value.name in sizes:
            kind = value.type.tensor_type
            bits = DTYPES[kind.elem_type][1]
            kind.shape.dim[HEAD_SIZE].Clear()
            kind.shape.dim[HEAD_SIZE].dim_value = stored_elements(sizes[value.name], cache_bits, bits)
    return result


def why_not(model: ModelProto, pairs: Sequence[CachePair], cache_bits: int, longest: int) -> str:
    """The reason why `pairs` of floats cannot have `cache_bits` bits, as the rest of a sentence about the cache; empty
    without one. onnxruntime-web has one kernel for attention over quantized caches, without caps and windows.
    """
    written, presents = caches_in_place(model), {pair.present for pair in pairs}
    shared = next((node for node in model.graph.node if not presents.isdisjoint(node.input)), None)
    if shared is not None:
        return f"cannot be used if other layers read it, as {shared.name} does"
    for pair in pairs:
        if (pair.past, pair.present) not in written:
            return f"needs GroupQueryAttention, which does not write {pair.present}"
        why = unfit(pair.head_size, cache_bits)
        if why:
            return f"cannot be used: {pair.past} has heads of {pair.head_size} elements, {why}"
    if has_soft_caps(model):
        return "cannot be used with soft caps of attention, which this model has"
    window = attention_window(model)
    if 0 < window < longest:
        return (
            f"cannot be used with attention that looks back {window} positions and a context_length of {longest} (set "
            f"it to {window} in genai_config.json)"
        )
    return ""


def with_bits(pairs: Sequence[CachePair], before: int, after: int, element_bits: int) -> tuple[CachePair, ...]:
    """The pairs with `after` bits an element of a head in place of `before`; 0 is for floats of `element_bits`."""

    def sized(pair: CachePair) -> CachePair:
        size = (pair.head_size * element_bits - SCALE_BITS) // before if before else pair.head_size
        return replace(pair, head_size=stored_elements(size, after, element_bits) if after else size)

    return tuple(map(sized, pairs))


def fewer_bits(
    model: ModelProto, pairs: Sequence[CachePair], cache_bits: int, element_bits: int, longest: int
) -> tuple[int, ...]:
    """The smaller numbers of bits that the caches could have, for sequences of up to `longest` positions."""
    floats = with_bits(pairs, cache_bits, 0, element_bits)
    possible = QUANTIZED if not cache_bits else [bits for bits in QUANTIZED if bits < cache_bits]
    return tuple(bits for bits in possible if pairs and not why_not(model, floats, bits, longest))


def unfit(head_size: int, cache_bits: int) -> str:
    """The reason why heads of a size stay floats; empty if they can be quantized."""
    if cache_bits == 4 and (head_size < LEAST_IN_4_BITS or head_size & (head_size - 1)):
        return f"not a power of two from {LEAST_IN_4_BITS} on"
    return "not a multiple of 4" if head_size % 4 else ""
