"""Times, as ratios of the least of interleaved runs in one page, and between stamps taken independently."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts

PROMPT = [5, 6, 7, 8, 9]


@pytest.mark.extended
def test_the_tapes_host_time_is_at_most_a_third_of_the_other_ways(scripts: PageScripts) -> None:
    found = scripts.run("timings", "host_times", "nano-llama", model="nano-llama", prompt=PROMPT, count=25, rounds=3)
    assert found["used"] == {capture: [capture, None] for capture in ("tape", "ort", "off")}
    least = found["least"]
    assert 3 * least["tape"] <= least["ort"], least
    assert 3 * least["tape"] <= least["off"], least


@pytest.fixture(scope="module")
def stamps(installed_scripts: PageScripts) -> dict[str, Any]:
    found: dict[str, Any] = installed_scripts.run(
        "timings", "stamps", "nano-llama", model="nano-llama", prompt=PROMPT, count=17
    )
    assert found["capture"] == ["tape", None]
    return found


def test_a_bursts_times_are_those_of_its_submit_and_its_map(stamps: dict[str, Any]) -> None:
    """Each lies between what comes right before it and right after it, however long a busy machine makes that."""
    seen = [stamps[name] for name in ("finished", "submitted", "mapped", "ranged")]
    assert [len(stamps["bursts"]), *map(len, seen)] == [9] * 5
    for (submit, readable), finished, submitted, mapped, ranged in zip(stamps["bursts"], *seen, strict=True):
        assert finished <= submit <= submitted, stamps
        assert mapped <= readable <= ranged, stamps


def test_a_bursts_computing_ends_when_the_gpu_says_so_and_copying_follows(stamps: dict[str, Any]) -> None:
    """The probe asks the queue, too: before the burst does, and after it."""
    assert len(stamps["bursts"]) == len(stamps["done"]) == len(stamps["work"]) == 9
    for (submit, readable), done, (before, after) in zip(stamps["bursts"], stamps["done"], stamps["work"], strict=True):
        assert submit < before <= done <= after or done == readable <= before, stamps
        assert done <= readable, stamps
    assert (
        0
        <= stamps["copying_ms"]
        == pytest.approx(
            sum(readable - done for (_, readable), done in zip(stamps["bursts"], stamps["done"], strict=True))
        )
    )
    assert 0 < stamps["waiting_ms"] <= stamps["done"][-1] - stamps["bursts"][0][0]


def test_the_generators_times_are_those_of_the_gpus_results(stamps: dict[str, Any]) -> None:
    tokens, mapped = stamps["tokens"], stamps["mapped"]
    assert len(tokens) == 17
    assert tokens[0][0] <= stamps["started"] <= stamps["first_submit"], stamps
    assert mapped[0] <= stamps["first_token"] <= tokens[0][1], stamps
    asked, there = tokens[-1]
    # The last token comes with another one, which is taken before it.
    assert mapped[-1] <= asked <= stamps["last_token"] <= there, stamps
    assert stamps["time_to_first_token"] == stamps["first_token"] - stamps["started"]
    elapsed = stamps["last_token"] - stamps["first_token"]
    assert stamps["tokens_per_second"] == pytest.approx(1000.0 * 16 / elapsed)
