"""Copies of results that our operations cannot write into the buffers of their readers."""

from __future__ import annotations

import pytest

from capstan.tape.ops.gemv import MatVec
from capstan.tape.placement import MisplacedError, Place, place_values
from capstan.tape.prefill_graph import Moved, moved_apart
from capstan.tape.step_graph import Node, Recorded, StepGraph, Values

X, Y, Z = 10, 10, 12
"""The buffers of x, y and z."""


def graph(y: int, reader: Recorded | MatVec) -> StepGraph:
    """Values 1, 2 and 3 are x, y and z: y, in buffer `y`, is a product of x, which a recorded operation makes."""
    product = MatVec(900, 901, 50, 64, 32, "f16", rows=3)
    nodes = [
        Node(Recorded(0), (), (1,), 0, frozenset({0})),
        Node(product, (1,), (2,), 2, frozenset({1, 2})),
        Node(reader, (2,), (3,), 3, frozenset({3})),
    ]
    return StepGraph(tuple(nodes), {1: X, 2: y, 3: Z}, {}, {Z: 3})


def test_a_result_that_would_be_written_where_x_is_read_is_copied() -> None:
    before = graph(Y, Recorded(3))
    with pytest.raises(MisplacedError, match="would read and write"):
        place_values(before)
    placement = place_values(moved_apart(before, Values(count=3)))
    _, product, copy, _ = placement.nodes
    assert (product.reads, product.writes) == ((1,), (4,))
    assert (copy.what, copy.reads, copy.writes, copy.position) == (Moved(300), (4,), (2,), 2)
    assert copy.origins == product.origins
    assert placement.places[4] == Place("scratch", 0)
    assert placement.scratch == (512,)
    assert placement.places[2] == Place("recorded", X)


@pytest.mark.parametrize("other", ["another buffer", "one of our operations reads it"])
def test_others_are_not_copied(other: str) -> None:
    before = graph(11, Recorded(3)) if other == "another buffer" else graph(Y, MatVec(902, 903, 8, 50, 32, "f16"))
    assert moved_apart(before, Values(count=3)) == before
