"""Values in buffers: scratch is shared by what never lives at the same time, and nobody finds another's value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from capstan.errors import TapeError
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.elementwise import Add
from capstan.tape.ops.gemv import MatVec
from capstan.tape.placement import MisplacedError, Place, Placement, place_values
from capstan.tape.step_graph import Node, Recorded, StepGraph, What


def product(n: int, element: str = "f32", residual: bool = False) -> MatVec:
    return MatVec(900, 901, n, 64, 32, element, residual=residual)


def attention(key: int = 50, value: int = 51) -> Attention:
    return Attention(12, 2, 8, 64, 0.5, 902, 903, key, value, "f32")


def node(what: What, reads: Sequence[int], writes: Sequence[int], position: int) -> Node:
    return Node(what, tuple(reads), tuple(writes), position, frozenset({position}))


def needed(made: Node) -> int:
    """Bytes of the vector that it makes."""
    what = made.what
    assert isinstance(what, MatVec)
    return what.n * (2 if what.element == "f16" else 4)


def random_graph(seed: int) -> StepGraph:
    """Products of random sizes over earlier values, some of them recorded operations with buffers of their own."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    homes = {1: 10, 2: 11}
    values = [1, 2]
    for position in range(rng.randrange(1, 40)):
        value = 100 + position
        recent = values[-rng.randrange(1, 9) :]
        reads = rng.sample(recent, min(len(recent), rng.choice([1, 1, 2])))
        homes[value] = 1000 + position
        if rng.random() < 0.25:
            what: What = Recorded(position)
        else:
            what = product(rng.choice([1, 16, 64, 65, 128, 300]), rng.choice(["f16", "f32"]), len(reads) > 1)
        nodes.append(node(what, reads, [value], position))
        values.append(value)
    last = {1000 + position: 100 + position for position in range(len(nodes)) if rng.random() < 0.1}
    return StepGraph(tuple(nodes), homes, {10: 1, 11: 2}, last)


@pytest.mark.parametrize("seed", range(40))
class TestAnyGraph:
    def test_finds_every_value_where_it_was_left(self, seed: int) -> None:
        graph = random_graph(seed)
        placement = place_values(graph)
        holds = {Place("recorded", buffer): value for buffer, value in graph.first.items()}
        for made in placement.nodes:
            assert [holds.get(placement.places[value]) for value in made.reads] == list(made.reads)
            read = {placement.places[value] for value in made.reads}
            assert not read & {placement.places[value] for value in made.writes}
            holds |= {placement.places[value]: value for value in made.writes}
        assert {buffer: holds[Place("recorded", buffer)] for buffer in graph.last} == graph.last

    def test_scratch_holds_what_is_put_there_and_lifetimes_in_it_are_apart(self, seed: int) -> None:
        graph = random_graph(seed)
        placement = place_values(graph)
        until = {value: i for i, made in enumerate(placement.nodes) for value in (*made.writes, *made.reads)}
        lives: dict[int, list[tuple[int, int]]] = {}
        for i, made in enumerate(placement.nodes):
            for value in made.writes:
                place = placement.places[value]
                if place.kind == "scratch":
                    assert needed(made) <= placement.scratch[place.id]
                    lives.setdefault(place.id, []).append((i, until[value]))
        assert sorted(lives) == list(range(len(placement.scratch))), "all of it is used"
        for spans in lives.values():
            for (_, end), (start, _) in pairwise(spans):
                assert end < start

    def test_what_recorded_operations_meet_is_where_they_look_for_it(self, seed: int) -> None:
        graph = random_graph(seed)
        placement = place_values(graph)
        for made in graph.nodes:
            if isinstance(made.what, Recorded):
                for value in (*made.reads, *made.writes):
                    assert placement.places[value] == Place("recorded", graph.homes[value])


def chain(length: int, size: int = 64) -> StepGraph:
    nodes = [node(product(size), [100 + i], [101 + i], i) for i in range(length)]
    return StepGraph(tuple(nodes), {100: 10, 100 + length: 11}, {10: 100}, {11: 100 + length})


def scratch_of(placement: Placement) -> list[int]:
    return [place.id for place in placement.places.values() if place.kind == "scratch"]


class TestScratch:
    def test_two_are_enough_for_a_chain(self) -> None:
        placement = place_values(chain(30))
        assert placement.scratch == (256, 256)
        assert len(scratch_of(placement)) == 29

    @pytest.mark.parametrize(
        ("size", "element", "expected"), [(64, "f32", 256), (65, "f32", 512), (128, "f16", 256), (1, "f16", 256)]
    )
    def test_sizes_are_bytes_rounded_up(self, size: int, element: str, expected: int) -> None:
        nodes = (node(product(size, element), [1], [2], 0), node(product(8), [2], [3], 1))
        placement = place_values(StepGraph(nodes, {1: 10, 3: 11}, {10: 1}, {11: 3}))
        assert placement.scratch == (expected,)

    def test_attention_needs_a_vector_of_all_its_heads(self) -> None:
        nodes = (node(attention(), [1, 2, 3], [4, 5, 6], 0), node(product(8), [4], [7], 1))
        graph = StepGraph(
            nodes, {1: 10, 2: 50, 3: 51, 5: 50, 6: 51, 7: 11}, {10: 1, 50: 2, 51: 3}, {50: 5, 51: 6, 11: 7}
        )
        assert place_values(graph).scratch == (512,)

    def test_what_nobody_reads_has_a_place_and_gives_it_back(self) -> None:
        nodes = (node(product(64), [1], [2], 0), node(product(64), [1], [3], 1), node(product(64), [1], [4], 2))
        placement = place_values(StepGraph(nodes, {1: 10, 4: 11}, {10: 1}, {11: 4}))
        assert [placement.places[value] for value in (2, 3)] == [Place("scratch", 0)] * 2

    def test_an_operation_reads_no_buffer_that_it_writes(self) -> None:
        nodes = (node(product(64), [1], [2], 0), node(product(64), [2], [3], 1), node(product(64), [3], [4], 2))
        placement = place_values(StepGraph(nodes, {1: 10, 4: 11}, {10: 1}, {11: 4}))
        assert placement.places[2] != placement.places[3]


class TestMisplaced:
    def error(self, graph: StepGraph) -> MisplacedError:
        with pytest.raises(MisplacedError) as raised:
            place_values(graph)
        return raised.value

    def test_an_operation_of_ours_that_reads_too_late(self) -> None:
        # Value 2 is in buffer 10 until operation 1 puts value 3 there; the product was moved behind that.
        nodes = (
            node(Recorded(0), [1], [2], 0),
            node(Recorded(1), [1], [3], 1),
            node(product(8), [2], [4], 2),
        )
        graph = StepGraph(nodes, {1: 9, 2: 10, 3: 10, 4: 11}, {9: 1}, {11: 4})
        error = self.error(graph)
        assert error.origins == {2}
        assert "the operation at 2 of the rewritten step would read another value" in str(error)

    def test_an_operation_of_ours_that_writes_too_late_for_a_recorded_one(self) -> None:
        nodes = (node(Recorded(0), [2], [3], 0), node(product(8), [1], [2], 1))
        graph = StepGraph(nodes, {1: 9, 2: 10, 3: 11}, {9: 1}, {11: 3})
        assert self.error(graph).origins == {1}

    def test_an_operation_of_ours_that_overwrites_what_a_recorded_one_reads(self) -> None:
        nodes = (node(Recorded(0), [1], [2], 0), node(product(8), [1], [3], 1), node(Recorded(2), [2], [4], 2))
        graph = StepGraph(nodes, {1: 9, 2: 10, 3: 10, 4: 11}, {9: 1}, {11: 4, 10: 3})
        assert self.error(graph).origins == {1}

    def test_a_buffer_that_is_read_and_written(self) -> None:
        nodes = (node(Recorded(0), [1], [2], 0), node(product(8), [2], [3], 1), node(Recorded(2), [3], [4], 2))
        graph = StepGraph(nodes, {1: 9, 2: 10, 3: 10, 4: 11}, {9: 1}, {11: 4})
        error = self.error(graph)
        assert error.origins == {1}
        assert "the operation at 1 would read and write Place(kind='recorded', id=10)" in str(error)

    def test_a_buffer_that_outlives_the_step_is_no_exception(self) -> None:
        nodes = (node(product(8), [1], [2], 0),)
        assert self.error(StepGraph(nodes, {1: 10, 2: 10}, {10: 1}, {10: 2})).origins == {0}

    def test_attention_writes_the_caches_that_it_reads_and_nothing_else(self) -> None:
        homes = {1: 10, 2: 50, 3: 51, 4: 11, 5: 50, 6: 51}
        first, last = {10: 1, 50: 2, 51: 3}, {50: 5, 51: 6, 11: 4}
        nodes = (node(attention(), [1, 2, 3], [4, 5, 6], 0),)
        assert place_values(StepGraph(nodes, homes, first, last)).scratch == ()
        assert self.error(StepGraph(nodes, {**homes, 4: 10}, first, {50: 5, 51: 6, 10: 4})).origins == {0}

    def test_a_step_that_leaves_another_value_behind(self) -> None:
        nodes = (node(Recorded(0), [1], [2], 0), node(product(8), [1], [3], 1))
        error = self.error(StepGraph(nodes, {1: 9, 2: 10, 3: 10}, {9: 1}, {10: 2}))
        assert error.origins == {1}
        assert "leaves another value in buffer 10" in str(error)

    def test_recorded_operations_alone_cannot_be_blamed(self) -> None:
        nodes = (node(Recorded(0), [1], [2], 0), node(Recorded(1), [1], [3], 1), node(Recorded(2), [2], [4], 2))
        graph = StepGraph(nodes, {1: 9, 2: 10, 3: 10, 4: 11}, {9: 1}, {11: 4})
        assert self.error(graph).origins == frozenset()

    def test_a_recorded_operation_writes_into_recorded_buffers_only(self) -> None:
        nodes = (node(product(8), [1], [2], 0), node(Recorded(1), [2], [3], 1))
        with pytest.raises(TapeError, match="the recorded operation 1 writes a value that no recorded buffer holds"):
            place_values(StepGraph(nodes, {1: 9, 2: 10}, {9: 1}, {}))


def test_nodes_run_in_the_order_of_their_positions() -> None:
    late, early = node(product(8), [2], [3], 5), node(product(8), [1], [2], 1)
    placement = place_values(StepGraph((late, early), {1: 10, 3: 11}, {10: 1}, {11: 3}))
    assert placement.nodes == (early, late)


def test_a_sum_without_a_product_has_the_size_of_its_vector() -> None:
    nodes = (node(Add(65, "f32"), [1, 2], [3], 0), node(product(8), [3], [4], 1))
    assert place_values(StepGraph(nodes, {1: 10, 2: 12, 4: 11}, {10: 1, 12: 2}, {11: 4})).scratch == (512,)
