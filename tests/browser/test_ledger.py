"""The ledger is every live GPUBuffer, and nothing stays when its owner has gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts

CYCLES = 200


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
    # What a closed generator leaves serves the next one, until it is trimmed.
    assert categories("generator closed")["persistent"] == prepared["persistent"]
    trimmed = categories("trimmed")
    assert trimmed["persistent"] == trimmed["io"] == 0
    assert trimmed["weights"] == loaded["weights"]
    assert sum(categories("model closed").values()) == 0


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
    assert found["devices"] == 0
