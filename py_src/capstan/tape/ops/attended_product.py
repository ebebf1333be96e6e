"""Plans the kernel matvec_attended.wgsl: it joins the splits of one new token's attention, and multiplies the joined
result by a weight matrix. This saves a dispatch in each layer at every length at which attention is split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..kernel_plan import WorkgroupLimits
from ..operation import STATE, Kernel, Operation, Value
from ..step_graph import Node
from .attention import Attention
from .gemv import OCTET, MatVec
from .gemv_int4 import tune_matvec

__all__ = ["AttendedProduct", "with_attention"]

JOINED_BYTES = 20 << 20
"""The most bytes of partials that the workgroups of a product read together at the most splits, as each joins all
heads: 17 MB with the 32 heads of 64 of Llama 3.2 1B. The 67 MB of Llama 3.1 8B would cost more than a dispatch."""

Counts = Callable[[int], tuple[int, int, int]]


@dataclass(frozen=True)
class AttendedProduct(Operation):
    """A product W x of one row and the attention whose result is x. The node reads the attention's inputs, then the
    product's other inputs; it writes the product's result, then x.
    """

    attention: Attention
    product: MatVec
    attention_reads: int

    def written_bytes(self, index: int) -> int:
        return self.attention.written_bytes(0) if index else self.product.written_bytes(0)

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        """Attention, the product at lengths of one split, and the product that joins several."""
        result, attended = writes
        *attend, join = self.attention.kernels(reads[: self.attention_reads], [attended], limits)
        others = reads[self.attention_reads :]
        (alone,) = self.product.kernels([attended, *others], [result], limits)
        assert callable(join.plan.counts)
        assert not callable(alone.plan.counts)
        one, several = counts(join.plan.counts, alone.plan.counts[0])
        shape = {name: join.plan.constants[name] for name in ("HEADS", "HEAD", "WINDOW", "ALONE", "MAX_SPLITS")}
        constants = {**alone.plan.constants, **shape, "POSITIONS": join.plan.constants["BLOCK"]}
        constants["SHUFFLED"] = limits.lanes > 0 and limits.lanes % int(shape["MAX_SPLITS"]) == 0
        bindings = {name: binding for name, binding in alone.bindings.items() if name != "x"}
        bindings |= {"partials": join.bindings["partials"], "state": STATE, "attended": Value(attended)}
        return [
            *attend,
            replace(alone, plan=replace(alone.plan, counts=one)),
            Kernel(replace(alone.plan, constants=constants, counts=several), alone.half, bindings),
        ]


@lru_cache(maxsize=64)
def counts(join: Counts, workgroups: int) -> tuple[Counts, Counts]:
    """Workgroups of the product by sequence length: at lengths where the join has no workgroups, and at those where it
    has some. Layers of one shape get the same functions.
    """

    def alone(length: int) -> tuple[int, int, int]:
        return (0, 1, 1) if join(length)[0] else (workgroups, 1, 1)

    def several(length: int) -> tuple[int, int, int]:
        return (workgroups, 1, 1) if join(length)[0] else (0, 1, 1)

    return alone, several


def with_attention(before: Node, node: Node, limits: WorkgroupLimits) -> Node | None:
    """The node of an attention and its product; None if the product cannot join the splits."""
    attention, product = before.what, node.what
    if not isinstance(attention, Attention) or not isinstance(product, MatVec) or node.reads[0] != before.writes[0]:
        return None
    plain = product.scales is not None and product.norm is None and product.up is None
    if attention.whole or not plain or attention.head % OCTET:
        return None
    what = AttendedProduct(attention, product, len(before.reads))
    origins, writes = before.origins | node.origins, (node.writes[0], before.writes[0])
    joined = Node(what, (*before.reads, *node.reads[1:]), writes, node.position, origins)
    return joined if joins_cheaply(what, joined, limits) else None


def joins_cheaply(what: AttendedProduct, node: Node, limits: WorkgroupLimits) -> bool:
    """Whether attention writes the result of one split itself, and the product has room for the join and little to read
    for it.
    """
    product = what.product
    attend, *_, joined = what.kernels(node.reads, node.writes, limits)
    if "y" not in attend.bindings or len(joined.bindings) > limits.buffers:
        return False
    tuning = tune_matvec(product.k, product.n, False, product.element == "f16", product.bits, limits)
    teams = 1 if tuning.staged else tuning.workgroup // tuning.span
    splits = int(joined.plan.constants["HEADS"]) * int(joined.plan.constants["MAX_SPLITS"])
    memory = tuning.memory(product.element == "f16") + 4 * splits
    return memory <= limits.memory and tuning.workgroups * teams * splits * what.attention.head * 4 <= JOINED_BYTES
