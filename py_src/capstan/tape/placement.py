"""Puts the values of a step's graph into buffers: into the recorded buffers if recorded operations use them, else into
scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import TapeError
from .step_graph import Node, Recorded, StepGraph

__all__ = ["MisplacedError", "Place", "Placement", "place_values"]

SCRATCH_ALIGNMENT = 256
"""Scratch sizes are rounded up to a multiple of this number of bytes, so that values of similar size can use a buffer
in turn.
"""


@dataclass(frozen=True)
class Place:
    """A recorded buffer by id, or a scratch buffer by number."""

    kind: str
    """'recorded' or 'scratch'."""
    id: int


@dataclass(frozen=True)
class Placement:
    """Nodes in the order in which they run, the place of each value while it is needed, and the bytes of each scratch
    buffer.
    """

    nodes: tuple[Node, ...]
    places: Mapping[int, Place]
    scratch: tuple[int, ...]
    homes: Mapping[int, int]
    """The recorded buffer of each value that the recorded step makes."""


class MisplacedError(TapeError):
    """One of Capstan's operations does not fit the buffers of its values; `origins` are the recorded operations that it
    replaces.
    """

    def __init__(self, message: str, origins: frozenset[int]) -> None:
        super().__init__(message)
        self.origins = origins


def place_values(graph: StepGraph) -> Placement:
    """Choose a buffer for each value, and check that each operation finds its inputs in the buffers that it reads.
    Raises MisplacedError if an operation would read another value, or a buffer that it writes: recorded operations use
    the buffers of the recording, which other values may have used in between.
    """
    nodes = sorted(graph.nodes, key=lambda node: node.position)
    met = {value for node in nodes if isinstance(node.what, Recorded) for value in (*node.reads, *node.writes)}
    fixed = met | set(graph.first.values()) | _lasting(graph)
    places = {value: Place("recorded", graph.homes[value]) for value in fixed if value in graph.homes}
    last_use = {value: i for i, node in enumerate(nodes) for value in (*node.writes, *node.reads)}
    scratch: list[int] = []
    free: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for value in node.writes:
            if value not in places:
                size = -(-_bytes(node, value) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
                if not free.get(size):
                    free.setdefault(size, []).append(len(scratch))
                    scratch.append(size)
                places[value] = Place("scratch", free[size].pop())
        for value in dict.fromkeys((*node.reads, *node.writes)):
            place = places.get(value)
            if place is not None and place.kind == "scratch" and last_use[value] == i:
                free[scratch[place.id]].append(place.id)
    placement = Placement(tuple(nodes), places, tuple(scratch), graph.homes)
    _check(graph, placement)
    return placement


def _lasting(graph: StepGraph) -> set[int]:
    """All values in buffers that outlive the step; these are written in place."""
    return {value for value, home in graph.homes.items() if home in graph.last}


def _bytes(node: Node, value: int) -> int:
    """The size of a value that one of Capstan's nodes makes."""
    if isinstance(node.what, Recorded):
        raise TapeError(f"the recorded operation {node.what.index} writes a value that no recorded buffer holds")
    return node.what.written_bytes(node.writes.index(value))


def _check(graph: StepGraph, placement: Placement) -> None:
    holds: dict[Place, int] = {Place("recorded", buffer): value for buffer, value in graph.first.items()}
    writers: dict[Place, Node] = {}
    makers = graph.makers()
    for node in placement.nodes:
        for value in node.reads:
            place = placement.places[value]
            if holds.get(place) != value:
                # Our operation runs in the place of the last operation that it replaces, so one of the replaced ones is
                # misplaced.
                involved = (node, makers.get(value), writers.get(place))
                moved = [other for other in involved if other is not None and not isinstance(other.what, Recorded)]
                raise MisplacedError(
                    f"the operation at {node.position} of the rewritten step would read another value from {place}",
                    moved[0].origins if moved else frozenset(),
                )
        if not isinstance(node.what, Recorded):
            both = {placement.places[value] for value in node.reads} & {placement.places[v] for v in node.writes}
            both -= {Place("recorded", buffer) for buffer in node.what.in_place}
            if both:
                raise MisplacedError(
                    f"the operation at {node.position} would read and write {both.pop()}", node.origins
                )
        for value in node.writes:
            holds[placement.places[value]] = value
            writers[placement.places[value]] = node
    for buffer, value in graph.last.items():
        place = Place("recorded", buffer)
        if holds.get(place) != value:
            origins = writers[place].origins if place in writers else frozenset()
            raise MisplacedError(f"the rewritten step leaves another value in buffer {buffer}", origins)
