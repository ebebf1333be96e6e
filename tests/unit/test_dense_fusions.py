"""Products of weights that are not int4, and gates that were recorded as separate operations, are fused too."""

from __future__ import annotations

import numpy as np
import pytest

from capstan.tape import PASSES
from tests.unit.small_decoders import INNER, VOCABULARY, WIDTH, Small, decoder
from tests.unit.test_fusions import check, made_of


@pytest.mark.parametrize("swapped", [False, True])
def test_is_fused_as_int4_is(swapped: bool) -> None:
    small = decoder(dense=True, swapped=swapped)
    expected = {"product norm": 3, "product residual": 4, "product norm gated": 2, "attention": 2, "recorded": 1}
    assert made_of(check(small, small.sketch.record(recycle=False), PASSES)) == expected


def test_a_gate_of_nbits_products() -> None:
    small = Small()
    x = small.embedded()
    gate, up = (small.matmul(x, INNER, WIDTH) for _ in range(2))
    small.matmul(small.multiply(small.silu(gate, INNER), up, INNER), VOCABULARY, INNER, into=small.logits)
    placement = check(small, small.sketch.record(), PASSES)
    assert made_of(placement) == {"recorded": 1, "product gated": 1, "product": 1}
    placement = check(small, small.sketch.record(), [name for name in PASSES if name != "dead"])
    assert made_of(placement) == {"recorded": 1, "product gated": 1, "product": 1}, "its parts are left over"


def gate_of(small: Small, alpha: float = 1.0, *, same_input: bool = True, widths: tuple[int, int] = (64, 64)) -> None:
    x = small.embedded()
    gate = small.matmul(x, widths[0], WIDTH)
    up = small.matmul(x if same_input else small.cos, widths[1], WIDTH)
    product = small.multiply(small.silu(gate, INNER, alpha), up, INNER)
    small.matmul(product, VOCABULARY, INNER, into=small.logits)


@pytest.mark.parametrize("dense", [False, True])
def test_a_gate_with_gelu_is_one_product(dense: bool) -> None:
    small = Small(dense=dense)
    x = small.embedded()
    gate, up = (small.matmul(x, INNER, WIDTH) for _ in range(2))
    small.matmul(small.multiply(small.gelu(gate, INNER), up, INNER), VOCABULARY, INNER, into=small.logits)
    assert made_of(check(small, small.sketch.record(), PASSES)) == {"recorded": 1, "product gated": 1, "product": 1}


def test_a_gate_with_another_activation_stays() -> None:
    small = Small(dense=True)
    gate_of(small, 1.702)
    placement = check(small, small.sketch.record(), PASSES)
    assert made_of(placement) == {"recorded": 3, "product": 3}


def test_a_gate_of_two_inputs_stays() -> None:
    small = Small(dense=True)
    gate_of(small, same_input=False)
    assert made_of(check(small, small.sketch.record(), PASSES)) == {
        "recorded": 2,
        "product activated": 1,
        "product": 2,
    }


def test_a_gate_of_products_of_other_sizes_stays() -> None:
    small = Small(dense=True)
    gate_of(small, widths=(64, 68))
    assert made_of(check(small, small.sketch.record(), PASSES)) == {
        "recorded": 2,
        "product activated": 1,
        "product": 2,
    }
    small = Small(dense=True)
    gate_of(small, widths=(68, 68))
    assert made_of(check(small, small.sketch.record(), PASSES)) == {"recorded": 3, "product": 3}


@pytest.mark.parametrize("which", ["gate", "activated", "up"])
def test_a_gate_of_which_something_is_read_elsewhere_stays(which: str) -> None:
    small = Small(dense=True)
    s = small.sketch
    x = small.embedded()
    parts = {name: small.matmul(x, INNER, WIDTH) for name in ("gate", "up")}
    parts["activated"] = small.silu(parts["gate"], INNER)
    product = small.multiply(parts["activated"], parts["up"], INNER)
    s.unknown(lambda v: v[:8], [parts[which]], 8, into=s.lasting(8))
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    alone = which == "gate"
    assert made_of(check(small, s.record(), PASSES)) == (
        {"recorded": 4, "product": 3} if alone else {"recorded": 3, "product activated": 1, "product": 2}
    )


@pytest.mark.parametrize("which", ["gate", "activated", "up"])
def test_a_gate_of_which_something_outlives_the_step_stays(which: str) -> None:
    small = Small(dense=True)
    s = small.sketch
    x = small.embedded()
    kept = s.lasting(INNER)
    parts = {name: small.matmul(x, INNER, WIDTH, into=kept if name == which else None) for name in ("gate", "up")}
    parts["activated"] = small.silu(parts["gate"], INNER)
    if which == "activated":
        s.calls[-1].writes["y"] = parts["activated"] = kept
    product = small.multiply(parts["activated"], parts["up"], INNER)
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    alone = which == "gate"
    assert made_of(check(small, s.record(), PASSES)) == (
        {"recorded": 3, "product": 3} if alone else {"recorded": 2, "product activated": 1, "product": 2}
    )


@pytest.mark.parametrize("unknown", [("gate", "up"), ("gate",), ("up",)], ids="-".join)
def test_a_gate_of_what_nobody_recognises_stays(unknown: tuple[str, ...]) -> None:
    small = Small()
    s = small.sketch
    x = small.embedded()
    parts = {
        name: s.unknown(lambda v: np.resize(v[:WIDTH] ** 2, INNER), [x], INNER)
        if name in unknown
        else small.matmul(x, INNER, WIDTH)
        for name in ("gate", "up")
    }
    product = small.multiply(small.silu(parts["gate"], INNER), parts["up"], INNER)
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    stays = {"recorded": 3 + len(unknown), "product": 3 - len(unknown)}
    if "gate" not in unknown:
        stays = {"recorded": 3, "product activated": 1, "product": 1}
    assert made_of(check(small, s.record(), PASSES)) == stays


@pytest.mark.parametrize("kinds", [(False, True), (True, False)], ids=["int4 and dense", "dense and int4"])
def test_a_gate_of_an_int4_and_a_dense_product_stays(kinds: tuple[bool, bool]) -> None:
    small = Small()
    x = small.embedded()
    made = []
    for dense in kinds:
        small.dense = dense
        made.append(small.matmul(x, INNER, WIDTH))
    product = small.multiply(small.silu(made[0], INNER), made[1], INNER)
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    assert made_of(check(small, small.sketch.record(), PASSES)) == {
        "recorded": 2,
        "product activated": 1,
        "product": 2,
    }


def test_a_squared_silu_stays() -> None:
    small = Small(dense=True)
    activated = small.silu(small.matmul(small.embedded(), INNER, WIDTH), INNER)
    product = small.multiply(activated, activated, INNER)
    small.matmul(product, VOCABULARY, INNER, into=small.logits)
    assert made_of(check(small, small.sketch.record(), PASSES)) == {
        "recorded": 2,
        "product activated": 1,
        "product": 1,
    }
