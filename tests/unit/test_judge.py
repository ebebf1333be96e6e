"""How far an operation may be from the truth before it is found to be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.device.webgpu.tapes.step_check import gross, made_in_int8
from capstan.device.webgpu.tapes.verdicts import OURS, RECORDED, Bound, judge
from capstan.tape import UNIT, Found, MatVec, Node, Pipeline, Recorded, Recording

PRODUCT = MatVec(1, 2, 576, 1536, 32, "f32")


def faults(what: MatVec, bound: Bound, mean: float, largest: float) -> dict[int, str]:
    """The faults of a result that is off by these parts of its spread."""
    node = Node(what, (3,), (4,), 0, frozenset({0}))
    unit = UNIT[what.element]
    found = Found(0, "result", what.element, largest / unit, mean / unit, 1.0, 1.0, 0, 0)
    return judge([node], [found], bound, "it", made_in_int8([node], {4}) if bound is RECORDED else ())


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_a_recorded_product_may_round_to_int8_where_it_is_known_to(element: str) -> None:
    rounded = replace(PRODUCT, element=element, rounded=True)
    assert faults(rounded, RECORDED, mean=0.026, largest=0.5) == {}
    if element == "f32":
        assert faults(replace(rounded, rounded=False), RECORDED, mean=0.026, largest=0.5)


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_our_product_may_not(element: str) -> None:
    assert faults(replace(PRODUCT, element=element, rounded=True), OURS, mean=0.026, largest=0.5)


@pytest.mark.parametrize(("mean", "largest"), [(0.14, 1.0), (0.01, 5.0)], ids=["a lost run of weights", "one element"])
def test_something_else_is_found_in_int8_too(mean: float, largest: float) -> None:
    assert faults(replace(PRODUCT, rounded=True), RECORDED, mean, largest)


def test_what_is_made_of_a_value_in_int8_that_the_recorded_step_does_not_write_is_in_int8_too() -> None:
    nodes = [
        Node(replace(PRODUCT, rounded=True), (1,), (2,), 0, frozenset({0})),
        Node(PRODUCT, (2,), (3,), 1, frozenset({1})),
        Node(PRODUCT, (3,), (4,), 2, frozenset({2})),
        Node(Recorded(3), (3,), (5,), 3, frozenset({3})),
        Node(PRODUCT, (4,), (6,), 4, frozenset({4})),
    ]
    assert made_in_int8(nodes, homes={1, 2, 3, 4, 5, 6}) == {0}
    assert made_in_int8(nodes, homes={1, 3, 4, 5, 6}) == {0, 1}
    assert made_in_int8(nodes, homes={1, 4, 5, 6}) == {0, 1, 2}


@pytest.mark.parametrize(("line", "allowed"), [("sum += a * b;", 2e-3), ("sum += dot4I8Packed(a, b);", 0.25)])
def test_a_whole_step_may_differ_by_more_where_activations_are_in_int8(line: str, allowed: float) -> None:
    recording = Recording(7, (), {1: Pipeline("", {}, line)}, {}, {})
    assert gross(recording).float32 == allowed
