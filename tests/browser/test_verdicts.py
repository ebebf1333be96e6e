"""A kernel that computes something else is found out in the page, and it alone is left out; verdicts are kept.

Each mutation is a small change to the text of a kernel on its way to the GPU, like a bug. The model's residual stream
has channels that are hundreds of times the others, like those of trained models.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.model_variants import Variants, with_outliers
from tests.browser.page_scripts import PageScripts

pytestmark = pytest.mark.own_page

ASKED: dict[str, Any] = {"prompt": [5, 6, 7, 8, 9], "count": 12}
UNCHANGED = {"kernel": "", "wanted": "-", "instead": ""}

GEMV, ATTENTION = "matvec_q4", "attention"
MUTATIONS = {
    "the scale of the next row": (
        GEMV,
        "scales[row * BLOCKS + block];",
        "scales[min(row + 1u, N - 1u) * BLOCKS + block];",
    ),
    "a lost run of 32 weights": (
        GEMV,
        "total_of(lower + upper) * f32(",
        "select(1.0, 0.0, member + s * SPAN == 1u) * total_of(lower + upper) * f32(",
    ),
    "weights off by one": (GEMV, "(8388608.0 + zero)", "(8388609.0 + zero)"),
    "a lost residual": (GEMV, "added = f32(residual[n]);", "added = 0.0;"),
    "an epsilon a thousand times too large": (GEMV, "+ EPSILON", "+ EPSILON * 1000.0"),
    "swapped heads": (ATTENTION, "min(tile * TILE + i / CHUNKS, GROUP - 1u)", "(GROUP - 1u - i / CHUNKS % GROUP)"),
    "a stale row": (ATTENTION, "if (split == 0u && tile == 0u) {", "if (split == 1u && tile == 7u) {"),
    "one position too few": (
        ATTENTION,
        "let here = min(BLOCK, length - block * BLOCK);",
        "let here = min(BLOCK, length - 1u - min(length - 1u, block * BLOCK));",
    ),
    "one position too many": (
        ATTENTION,
        "if (at < position) {",
        "if (at < position - 1u || at > position) {",
    ),
    "a rotation by the position before": (
        ATTENTION,
        "rotation(chunk, total - 1u)",
        "rotation(chunk, total - 2u)",
    ),
    "a scale of attention a hundredth off": (ATTENTION, "SCALE * LOG2_E;", "SCALE * LOG2_E * 1.01;"),
}


@pytest.fixture(scope="module")
def outliers(variants: Variants) -> str:
    return with_outliers(variants, "nano-outliers")


@pytest.fixture(scope="module")
def unchanged(outliers: str, installed_scripts: PageScripts) -> dict[str, Any]:
    """The result of the model with outliers and unchanged kernels."""
    found: dict[str, Any] = installed_scripts.run(
        "verdicts", "with_changed_kernel", outliers, **ASKED, model=outliers, **UNCHANGED
    )
    return found


@pytest.mark.extended
def test_the_model_with_outliers_is_fused(unchanged: dict[str, Any]) -> None:
    assert (unchanged["changed"], unchanged["fallbacks"]) == (0, {})
    assert unchanged["passes"]["fused"].endswith("1 of them as recorded")
    assert "left out" not in unchanged["passes"]


@pytest.mark.extended
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_kernel_that_computes_something_else_is_left_out_and_ids_stay_right(
    mutation: str, outliers: str, unchanged: dict[str, Any], scripts: PageScripts
) -> None:
    kernel, wanted, instead = MUTATIONS[mutation]
    change = {"kernel": kernel, "wanted": wanted, "instead": instead}
    found = scripts.run("verdicts", "with_changed_kernel", outliers, **ASKED, model=outliers, **change)
    assert found["changed"] > 0, "the kernel's text has changed: write this mutation again"
    what = "attention of" if kernel == ATTENTION else "the int4 product"
    assert what in found["passes"]["left out"]
    assert found["fallbacks"]
    assert all(name.startswith("a fused decode kernel: ") for name in found["fallbacks"])
    assert found["ids"] == unchanged["ids"]


@pytest.mark.extended
def test_a_second_generator_and_a_second_load_compare_nothing(scripts: PageScripts) -> None:
    first, *later = scripts.run("verdicts", "later_loads", "nano-qwen2", model="nano-qwen2", **ASKED)
    assert first["calls"]["witness"] > 0
    assert first["calls"]["compare"] > 0
    assert len(later) == 2
    for found in later:
        assert found["calls"] == {}
        assert (found["ids"], found["passes"]) == (first["ids"], first["passes"])
