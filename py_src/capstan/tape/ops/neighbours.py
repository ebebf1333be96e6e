"""Joins operations of a placed step with those right after them, where one kernel can do the work of both. Their values
keep their places, so that each operation can still be compared with the truth by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..kernel_plan import WorkgroupLimits
from ..placement import Place, Placement
from ..step_graph import Node, Recorded
from .attended_product import with_attention
from .normed_recurrence import with_norm

__all__ = ["neighbours_joined"]


def neighbours_joined(placement: Placement, limits: WorkgroupLimits) -> tuple[Placement, list[int]]:
    """The placement with attention and the product right after it as one operation, wherever the product can join the
    splits, and so with linear attention and the norm after it, if the value between them has no other reader; and for
    each node of the given placement, the index of the one that does its work.
    """
    readers = Counter(value for node in placement.nodes for value in set(node.reads))
    nodes: list[Node] = []
    within: list[int] = []
    for node in placement.nodes:
        before = nodes[-1] if nodes else None
        joined = None
        if before is not None and readers[before.writes[0]] == 1:
            joined = with_attention(before, node, limits) or with_norm(before, node, limits)
        if joined is None or overlapping(placement, joined):
            nodes.append(node)
        else:
            nodes[-1] = joined
        within.append(len(nodes) - 1)
    return replace(placement, nodes=tuple(nodes)), within


def overlapping(placement: Placement, node: Node) -> bool:
    """Whether a node would read and write one buffer, which no kernel may: a value of the second operation may have the
    place of one that only the first one reads.
    """
    in_place = frozenset[int]() if isinstance(node.what, Recorded) else node.what.in_place
    states = {Place("recorded", buffer) for buffer in in_place}
    reads, writes = ({placement.places[value] for value in values} for values in (node.reads, node.writes))
    return not (reads & writes) <= states
