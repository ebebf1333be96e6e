"""Devices lost and sessions released in the middle of a burst: a typed error at the next one, then a new load works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

pytestmark = pytest.mark.own_page

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
AHEAD = 4
"""K of the script."""

FAULTS = {
    "session": ("ClosedError", "destroyed with the session that owns it", True),
    "device": ("DeviceLostError", "the WebGPU device was lost", False),
    "model": ("ClosedError", "closed; load", False),
    "validation": ("ValidationError", "WebGPU: ", False),
    "memory": ("OutOfMemoryError", "WebGPU: no room", False),
}

EXPECTED = {"validation": "usage", "memory": "no room"}
"""The page's own words for a fault."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_in_the_middle_of_a_burst_is_typed_and_a_new_load_works(what: str, scripts: PageScripts) -> None:
    kind, message, healthy = FAULTS[what]
    if what in EXPECTED:
        scripts.expect(EXPECTED[what])
    found = scripts.run("faults", "in_a_burst", "nano-llama", what=what)
    wanted = oracle.greedy(LLAMA, PROMPT, 60)
    assert found["before"] == wanted[:9]
    assert found["flights"] >= 1, "nothing was under way"
    assert found["error"]["type"] == kind, found
    assert message in found["error"]["message"]
    assert found["after"] == wanted[9 : 9 + len(found["after"])], "an id that came after the fault is wrong"
    assert len(found["after"]) <= 2 * AHEAD, "the fault was reported later than at the next burst"
    assert found["again"] == kind, "the fault is not told a second time"
    assert found["healthy"] is healthy
    assert found["fresh"] == wanted[:12]


@pytest.mark.extended
def test_a_loss_that_the_browser_tells_of_late_is_a_loss(scripts: PageScripts) -> None:
    found = scripts.run("faults", "lost_late", "nano-llama", waiting=0.5)
    assert found == {"early": 0, "error": "DeviceLostError"}


@pytest.mark.extended
@pytest.mark.parametrize("what", ["weights", "sequence"])
def test_without_memory_an_error_says_so_and_the_device_works_on(what: str, scripts: PageScripts) -> None:
    found = scripts.run("faults", "without_room", "nano-llama", "nano-float", what=what)
    assert found["lacking"].startswith("OutOfMemoryError: there is no memory for "), found["lacking"]
    assert found["lacking"].endswith("no room; close other models and pages, or ask for less")
    assert found["cancelled"].startswith("CancelledError")
    for turn in ("lacking", "cancelled"):
        before, after = found[f"{turn} left"]
        assert before["weights"] > 0
        assert after == before, turn
    assert found["healthy"]
    assert found["ids"] == [oracle.greedy(LLAMA, PROMPT, 12)]
