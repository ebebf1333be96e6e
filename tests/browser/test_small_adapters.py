"""Adapters that bind less than a weight has: it is read in parts, from tapes, and the ids are native's.

The largest weight is a number of the test's, since a fixture's weights are small; the last tests have a device with
WebGPU's least limits, and a table that is larger than those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 300, 7, 511, 128, 127]
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.MatMul.weight"


def limited(scripts: PageScripts, name: str, largest: int | None, **given: Any) -> dict[str, Any]:
    call = {"model": name, "prompt": PROMPT, "count": 8, "times": 1, "limits": {}, "largest": largest, **given}
    found: dict[str, Any] = scripts.run("adapters", "limited", name, **call)
    return found


@pytest.mark.parametrize(
    ("name", "largest", "parts", "recorded"),
    [
        ("nano-blocks", 16384, {TABLE: 8, f"{HEAD}_Q4": 2}, 10 + 7 + 7),
        ("nano-float", 32768, {TABLE: 4, HEAD: 4}, 6 + 3 + 3 + 1),
        pytest.param("nano-mixed", 16384, {TABLE: 8, f"{HEAD}_Q8G32": 2}, 24, marks=pytest.mark.extended),
    ],
)
def test_models_in_parts_pick_the_ids_of_native_from_tapes(
    name: str, largest: int, parts: dict[str, int], recorded: int, scripts: PageScripts
) -> None:
    """Recorded are the lookups in the parts of the table and in those of ids, a comparison and a choice for each part
    but the first, and what puts dense products behind one another."""
    found = limited(scripts, name, largest)
    assert found["ids"] == [oracle.greedy(FIXTURES / name, PROMPT, 8)]
    assert found["split"] == [[weight, number, ""] for weight, number in parts.items()]
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert found["passes"]["fused"].endswith(f" {recorded} of them as recorded")
