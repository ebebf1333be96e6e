"""Plans the step that is played to check its operations, and the kernels that compute their true results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .step_graph import Node, Recorded
from .witness import Witness

__all__ = ["Watched", "plan_witness"]


@dataclass(frozen=True)
class Watched:
    """A played step: the places of its values, and for each value the operation after which it is in its place."""

    nodes: Sequence[Node]
    place: Callable[[int], tuple[str, int] | None]
    """A value's buffer, 'recorded' or 'scratch', and its id; None if the step does not make the value."""
    after: Mapping[int, int]
    """The played operation after which a value is in its place."""


def plan_witness(watched: Watched, state: tuple[int, int, int], length: int, longest: int, owner: str) -> Witness:
    """Plans the kernels that judge Capstan's operations in a step that sees `length` positions, at most `longest`.

    A value that the step does not write, because its operation is joined to the next one, is taken from the truth.
    """
    witness = Witness(owner, state, length, longest, watched.place, watched.after)
    for witness.node, node in enumerate(watched.nodes):
        if not isinstance(node.what, Recorded):
            node.what.truth(witness, node.reads, node.writes)
    return witness
