"""Plans the layers of an encoder as a step of only Capstan's operations, over numbered buffers. No operation of the
step is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import TapeError
from .fused_step import FusedStep, fused_step
from .kernel_plan import WorkgroupLimits
from .operation import Operation
from .ops.matmul_matrices import MatrixMatMul, fits_matrices
from .ops.norm import CenteredNorm
from .ops.normed_rows import NormedRows
from .ops.prefill_attention import PrefillAttention, fits_prefill_attention
from .placement import Placement, place_values
from .step_graph import Node, StepGraph, Values

if TYPE_CHECKING:
    from ..graph.encoder_layers import EncoderLayers, LayerNorm, LayerProduct

__all__ = ["encoder_run", "encoder_step"]


def encoder_run(
    found: EncoderLayers, buffers: Mapping[str, int], rows: int, limits: WorkgroupLimits
) -> tuple[Placement, FusedStep]:
    """The layers over `rows` rows in float16, as operations and in the device's form. `buffers` has the number of each
    tensor that enters or leaves, and of each weight, by name. Raises TapeError if no kernel fits both layers and
    adapter.
    """
    placement = encoder_step(found, buffers, rows, limits)
    return placement, fused_step(placement, {}, (), (0, 0, 0), limits, 0)


def encoder_step(found: EncoderLayers, buffers: Mapping[str, int], rows: int, limits: WorkgroupLimits) -> Placement:
    values, nodes = Values(), list[Node]()

    def made(what: Operation, *reads: int, last: bool = False) -> int:
        value = values.written(buffers[found.leave]) if last else values.fresh()
        nodes.append(Node(what, reads, (value,), len(nodes), frozenset()))
        return value

    def norm(by: LayerNorm, k: int) -> NormedRows:
        return NormedRows(rows, k, CenteredNorm(buffers[by.gamma], by.epsilon, buffers[by.beta]))

    def product(by: LayerProduct, activation: str = "") -> MatrixMatMul:
        scales, zeros, bias = (buffers[name] if name else None for name in (by.scales, by.zeros, by.bias))
        block = by.block if by.scales else 0
        what = MatrixMatMul(buffers[by.weights], scales, rows, by.n, by.k, block, bits=by.bits, zeros=zeros)
        what = replace(what, bias=bias, activation=activation)
        if not fits_matrices(what, limits):
            raise TapeError(f"no kernel fits the product {by.k} -> {by.n} by {by.weights}")
        return what

    x = values.of(buffers[found.enter])
    for place, layer in enumerate(found.layers):
        width, heads = layer.q.n, layer.q.n // layer.head if layer.head else 0
        attention = PrefillAttention(rows, heads, heads, layer.head, rows, layer.scale, 0, whole=True)
        if heads * layer.head != width or not fits_prefill_attention(attention, limits):
            raise TapeError(f"no kernel fits attention with heads of {layer.head} elements in rows of {width}")
        normed = made(norm(layer.before, layer.q.k), x)
        parts = [made(product(part), normed) for part in (layer.q, layer.k, layer.v)]
        middle = made(product(layer.out), made(attention, *parts), x)
        raised = made(product(layer.up, layer.activation), made(norm(layer.between, layer.up.k), middle))
        x = made(product(layer.down), raised, middle, last=place == len(found.layers) - 1)
    last = {buffers[found.leave]: x}
    return place_values(StepGraph(tuple(nodes), values.homes, values.first, last))
