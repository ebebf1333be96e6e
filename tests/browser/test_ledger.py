"""The ledger is every live GPUBuffer, and nothing stays when its owner has gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts
from tests.page_memory import Targets

pytestmark = pytest.mark.own_page

CYCLES = 200
LOADS = 4


@pytest.mark.extended
def test_the_ledger_agrees_with_every_live_buffer(scripts: PageScripts) -> None:
    stages = {stage["stage"]: stage for stage in scripts.run("memory", "agreement", "nano-llama", model="nano-llama")}
    for name, stage in stages.items():
        assert stage["told"] == stage["seen"], f"{name}: the ledger has {stage['told']}, alive are {stage['seen']}"

    def categories(name: str) -> dict[str, int]:
        found: dict[str, int] = stages[name]["by_category"]
        return found

    assert sum(categories("nothing").values()) == 0
    loaded = categories("loaded")
    assert loaded["weights"] > 0
    assert loaded["persistent"] == loaded["io"] == loaded["user"] == 0
    assert categories("user buffer")["user"] == 4096
    assert categories("user buffer closed") == loaded
    prepared = categories("prepared")
    assert prepared["weights"] == loaded["weights"], "a sequence has no weights of its own"
    assert min(prepared["persistent"], prepared["io"], prepared["scratch"], prepared["kernels"]) > 0
    assert categories("generated")["persistent"] == prepared["persistent"]
    # The buffers of a closed generator serve the next one, until they are trimmed.
    assert categories("generator closed")["persistent"] == prepared["persistent"]
    trimmed = categories("trimmed")
    assert trimmed["persistent"] == trimmed["io"] == 0
    assert trimmed["weights"] == loaded["weights"]
    assert sum(categories("model closed").values()) == 0


@pytest.mark.extended
@pytest.mark.parametrize("lost_after", [pytest.param(None, marks=pytest.mark.extended), 1.0], ids=["closed", "lost"])
def test_what_was_made_on_a_device_goes_with_it(lost_after: float | None, scripts: PageScripts) -> None:
    page = scripts.harness.page
    targets = Targets(page.context.new_cdp_session(page))
    after: list[dict[str, Any]] = []
    for _ in range(LOADS):
        if lost_after:
            scripts.expect("lost")
        found = scripts.run("recovering", "run", "nano-llama", tokens=3, lost_after=lost_after)
        assert found["error"] is None or lost_after
        for _ in range(3):
            last = scripts.run("memory", "held")
            targets.collect_garbage()
        after.append(last)
    targets.session.detach()

    def rise(what: str, which: str) -> int:
        return int(after[-1][what][which] - after[0][what][which])

    assert rise("pipelines", "made") >= LOADS - 1, "pipelines are made for each model"
    # Those of the last model may be there until the next one is opened.
    assert rise("pipelines", "held") <= 0, after
    assert rise("devices", "made") == (LOADS - 1 if lost_after else 0), "a device goes from model to model"
    assert rise("devices", "held") <= 0, after


@pytest.mark.extended
def test_nothing_is_left_after_many_cycles(scripts: PageScripts) -> None:
    found: dict[str, Any] = scripts.run(
        "memory", "cycles", "nano-llama", model="nano-llama", generators=CYCLES, sessions=CYCLES, loads=CYCLES
    )
    assert found["nothing"] == [0, 0]
    assert found["generators"] == found["a model"]
    assert found["sessions"] == found["a model"]
    first = found["dropped generators"][0]
    assert first > found["a model"], "a dropped generator leaves its buffers to the next one"
    assert found["dropped generators"] == [first] * 3
    assert found["after dropped generators"] == found["a model"]
    assert found["a dropped model"] == [0, 0]
    assert found["closed"] == found["loads"] == [0, 0]
    assert found["devices"] == 1, "the one that the next model gets"
