"""Times, as ratios of medians over interleaved runs in one page, and against stamps taken independently."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts

PROMPT = [5, 6, 7, 8, 9]


def test_the_tapes_host_time_is_at_most_a_third_of_the_other_ways(scripts: PageScripts) -> None:
    found = scripts.run("timings", "host_times", "nano-llama", model="nano-llama", prompt=PROMPT, count=25, rounds=3)
    assert found["used"] == {capture: [capture, None] for capture in ("tape", "ort", "off")}
    medians = found["medians"]
    assert 3 * medians["tape"] <= medians["ort"], medians
    assert 3 * medians["tape"] <= medians["off"], medians


@pytest.fixture(scope="module")
def stamps(installed_scripts: PageScripts) -> dict[str, Any]:
    found: dict[str, Any] = installed_scripts.run(
        "timings", "stamps", "nano-llama", model="nano-llama", prompt=PROMPT, count=17
    )
    assert found["capture"] == ["tape", None]
    return found


def close(told: float, seen: float) -> bool:
    return abs(told - seen) <= 0.05 * seen


def test_a_bursts_times_are_those_of_its_submit_and_its_map(stamps: dict[str, Any]) -> None:
    bursts, submitted, mapped = stamps["bursts"], stamps["submitted"], stamps["mapped"]
    assert len(bursts) == len(submitted) == len(mapped) == 9
    told = [readable - submit for submit, readable, _ in bursts]
    seen = [end - submit for submit, end in zip(submitted, mapped, strict=True)]
    assert close(median(told), median(seen)), (told, seen)
    assert close(sum(told), sum(seen)), (told, seen)
    gaps = [b[0] - a[0] for a, b in zip(bursts, bursts[2:], strict=False)]
    gaps_seen = [b - a for a, b in zip(submitted, submitted[2:], strict=False)]
    assert close(sum(gaps), sum(gaps_seen)), (gaps, gaps_seen)


def test_the_generators_times_are_those_of_the_gpus_results(stamps: dict[str, Any]) -> None:
    mapped, asked = stamps["mapped"], stamps["asked"]
    assert close(stamps["time_to_first_token"], mapped[0] - asked), stamps
    # The last token is taken one step after its burst was readable, the first one at once.
    assert close(stamps["last_token"] - stamps["first_token"], mapped[-1] - mapped[0]), stamps
    assert close(stamps["tokens_per_second"], 1000.0 * 16 / (mapped[-1] - mapped[0])), stamps
