"""A step as it is played for its operations to be judged, and the plan of the truths of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .step_graph import Node, Recorded
from .witness import Witness

__all__ = ["Watched", "plan_witness"]


@dataclass(frozen=True)
class Watched:
    """A step as it is played: where its values are, and when."""

    nodes: Sequence[Node]
    place: Callable[[int], tuple[str, int] | None]
    """A value's buffer, 'recorded' or 'scratch', and its id; None if the step does not make the value."""
    after: Mapping[int, int]
    """The played operation after which a value is in its place."""


def plan_witness(watched: Watched, state: tuple[int, int, int], length: int, longest: int, owner: str) -> Witness:
    """Plans the kernels that judge the operations of ours in a step that sees `length` positions, at most `longest`.

    A value that the step does not make (one that a recorded step never writes, since it is joined to the next
    operation) is taken from the truth.
    """
    witness = Witness(owner, state, length, longest, watched.place, watched.after)
    for witness.node, node in enumerate(watched.nodes):
        if not isinstance(node.what, Recorded):
            node.what.truth(witness, node.reads, node.writes)
    return witness
