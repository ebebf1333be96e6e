"""Shapes of heads and blocks beside the usual ones: the oracle's ids, fused, or with the reason why not."""

from __future__ import annotations

from typing import Any

import pytest

from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.browser.reshaped import Shape

PROMPT, COUNT = [5, 6, 7, 8, 9], 12
FUSED = {
    "5 heads a group": Shape(heads=5, kv_heads=1),
    "rows that end in zero points' blocks of 64": Shape(hidden=200, block=64, zeros=True),
    "rows that end in blocks of int8": Shape(hidden=72, bits=8),
    "16 heads a group": Shape(heads=16, kv_heads=1),
    "heads of 112": Shape(head=112),
    "heads of 208": Shape(head=208),
    "heads of 512": Shape(heads=2, kv_heads=1, head=512),
}
KEPT = {
    "heads of 528": (Shape(heads=2, kv_heads=1, head=528), "rotary: heads of 528 elements are longer than 512"),
    "odd blocks of 16": (
        Shape(hidden=72, bits=8, block=16),
        "matmul_nbits: rows of 72 elements in blocks of 16 are not a multiple of 32 (7 times)",
    ),
    "odd blocks of 16 with zero points": (
        Shape(hidden=80, block=16, zeros=True),
        "matmul_nbits: rows of 80 elements in blocks of 16 are not a multiple of 32 (7 times)",
    ),
}


def taped(shape: Shape, variants: Variants, scripts: PageScripts) -> dict[str, str]:
    """The effect of each pass on the step of a model of that shape, whose ids are the oracle's."""
    name = shape.mount(variants, f"nano-{abs(hash(shape))}")
    found: Any = scripts.run("sequences", "drive", name, model=name, actions=[("append", PROMPT), ("generate", COUNT)])
    assert found["picked"] == oracle.greedy(variants.place / name, PROMPT, COUNT)
    assert (found["capture"], found["note"]) == ("tape", None)
    passes: dict[str, str] = found["passes"]
    assert "left out" not in passes
    return passes


@pytest.mark.one_in
@pytest.mark.parametrize("name", FUSED)
def test_a_step_of_another_shape_is_fused(name: str, variants: Variants, scripts: PageScripts) -> None:
    passes = taped(FUSED[name], variants, scripts)
    assert passes["fused"].endswith("became 12, 1 of them as recorded")
    assert passes["as recorded"] == "the kernel of data, input_indices, output: none of our kernels computes it"


@pytest.mark.extended
@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_fused_has_a_reason(name: str, variants: Variants, scripts: PageScripts) -> None:
    shape, reason = KEPT[name]
    assert reason in taped(shape, variants, scripts)["as recorded"]
