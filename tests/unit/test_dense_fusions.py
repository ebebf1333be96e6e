"""Gates that were recorded as separate operations, of dense weights and others: which become one product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from capstan.tape import PASSES
from tests.unit.small_decoders import INNER, VOCABULARY, WIDTH, Small, decoder
from tests.unit.test_fusions import check, made_of

JOINED = {"recorded": 1, "product gated": 1, "product": 1}
HALF = {"recorded": 2, "product activated": 1, "product": 2}
"""The activation joins its product, and the multiplication stays."""


@pytest.mark.parametrize("swapped", [False, True])
def test_is_fused_as_int4_is(swapped: bool) -> None:
    small = decoder(dense=True, swapped=swapped)
    expected = {"product norm": 3, "product residual": 4, "product norm gated": 2, "attention": 2, "recorded": 1}
    assert made_of(check(small, small.sketch.record(recycle=False), PASSES)) == expected


def gate(small: Small, *, act: str = "silu", alpha: float = 1.0, widths: tuple[int, int] = (INNER, INNER)) -> int:
    x = small.embedded()
    opened, up = (small.matmul(x, width, WIDTH) for width in widths)
    activated = small.gelu(opened, INNER) if act == "gelu" else small.silu(opened, INNER, alpha)
    return small.multiply(activated, up, INNER)


def of_two_inputs(small: Small) -> int:
    opened = small.matmul(small.embedded(), INNER, WIDTH)
    return small.multiply(small.silu(opened, INNER), small.matmul(small.cos, INNER, WIDTH), INNER)


def squared(small: Small) -> int:
    activated = small.silu(small.matmul(small.embedded(), INNER, WIDTH), INNER)
    return small.multiply(activated, activated, INNER)


def mixed(first: bool, second: bool) -> Callable[[Small], int]:
    """An int4 and a dense product."""

    def made(small: Small) -> int:
        x, parts = small.embedded(), []
        for dense in (first, second):
            small.dense = dense
            parts.append(small.matmul(x, INNER, WIDTH))
        return small.multiply(small.silu(parts[0], INNER), parts[1], INNER)

    return made


def unknown(*names: str) -> Callable[[Small], int]:
    """A gate of which nobody recognises these halves."""

    def made(small: Small) -> int:
        x = small.embedded()
        opened, up = (
            small.sketch.unknown(lambda v: np.resize(v[:WIDTH] ** 2, INNER), [x], INNER)
            if name in names
            else small.matmul(x, INNER, WIDTH)
            for name in ("gate", "up")
        )
        return small.multiply(small.silu(opened, INNER), up, INNER)

    return made


@pytest.mark.parametrize(
    ("make", "dense", "expected"),
    [
        (gate, False, JOINED),
        (lambda small: gate(small, act="gelu"), False, JOINED),
        (lambda small: gate(small, act="gelu"), True, JOINED),
        (lambda small: gate(small, alpha=1.702), True, {"recorded": 3, "product": 3}),
        (lambda small: gate(small, widths=(64, 68)), True, HALF),
        (lambda small: gate(small, widths=(68, 68)), True, {"recorded": 3, "product": 3}),
        (of_two_inputs, True, HALF),
        (squared, True, {"recorded": 2, "product activated": 1, "product": 1}),
        (mixed(False, True), False, HALF),
        (mixed(True, False), False, HALF),
        (unknown("gate"), False, {"recorded": 4, "product": 2}),
        (unknown("gate", "up"), False, {"recorded": 5, "product": 1}),
        (unknown("up"), False, {"recorded": 3, "product activated": 1, "product": 1}),
    ],
)
def test_a_gate_is_one_product_where_its_halves_fit(
    make: Callable[[Small], int], dense: bool, expected: dict[str, int]
) -> None:
    small = Small(dense=dense)
    small.matmul(make(small), VOCABULARY, INNER, into=small.logits)
    assert made_of(check(small, small.sketch.record(), PASSES)) == expected
    if expected is JOINED:
        kept = check(small, small.sketch.record(), [name for name in PASSES if name != "dead"])
        assert made_of(kept) == JOINED, "its parts are left over"


@pytest.mark.parametrize("lasts", [False, True], ids=["read elsewhere", "outlives the step"])
@pytest.mark.parametrize("which", ["gate", "activated", "up"])
def test_a_gate_of_which_something_is_needed_elsewhere_stays(which: str, lasts: bool) -> None:
    small = Small(dense=True)
    s = small.sketch
    x = small.embedded()
    kept = s.lasting(INNER) if lasts else None
    parts = {name: small.matmul(x, INNER, WIDTH, into=kept if name == which else None) for name in ("gate", "up")}
    parts["activated"] = small.silu(parts["gate"], INNER)
    if kept is not None and which == "activated":
        s.calls[-1].writes["y"] = parts["activated"] = kept
    product = small.multiply(parts["activated"], parts["up"], INNER)
    if not lasts:
        s.unknown(lambda v: v[:8], [parts[which]], 8, into=s.lasting(8))
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    stays = {"product": 3} if which == "gate" else {"product activated": 1, "product": 2}
    recorded = (3 if which == "gate" else 2) + (not lasts)
    assert made_of(check(small, s.record(), PASSES)) == {"recorded": recorded, **stays}
