"""Requests that are made again: how often, after which pauses, and what is said in the end."""

from __future__ import annotations

import asyncio

import pytest

from capstan.errors import ModelFileError, OptionError
from capstan.host import retrying
from capstan.host.retrying import require_stall_timeout, retried
from capstan.host.storage_interface import BrokenDownloadError


class Clock:
    """Collects the pauses instead of waiting."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    return made


def outcome(*failures: BrokenDownloadError) -> str:
    """The outcome of a request that fails with these errors, then succeeds."""
    left = list(failures)

    async def work() -> str:
        if left:
            raise left.pop(0)
        return "the file"

    return asyncio.run(retried(work))


def test_pauses_grow_and_differ(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSE_SECONDS", 2)
    for _ in range(20):
        assert outcome(BrokenDownloadError("a"), BrokenDownloadError("b")) == "the file"
    first, second = clock.pauses[::2], clock.pauses[1::2]
    assert all(2 <= pause <= 3 for pause in first)
    assert all(4 <= pause <= 6 for pause in second)
    assert len(set(first)) > 10


def test_a_server_is_left_alone_for_as_long_as_it_asks(clock: Clock) -> None:
    assert outcome(BrokenDownloadError("busy", 30.0)) == "the file"
    assert clock.pauses == [30.0]
    with pytest.raises(ModelFileError, match=r"^busy \(tried 1 time; the server requests a wait of 31 s\)$"):
        outcome(BrokenDownloadError("busy", 31.0))
    assert clock.pauses == [30.0]


def test_the_last_failure_is_told(clock: Clock) -> None:
    with pytest.raises(ModelFileError, match=r"^third \(tried 3 times\)$"):
        outcome(*map(BrokenDownloadError, ("first", "second", "third")))


@pytest.mark.parametrize("seconds", [0, -1, 0.05, 3601, float("nan"), True, "30", None])
def test_a_timeout_that_cannot_be_is_refused(seconds: object) -> None:
    with pytest.raises(OptionError, match="stall_timeout is .*; it must be from 0.1 to 3600 seconds"):
        require_stall_timeout(seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.1, 30, 3600])
def test_a_timeout_within_bounds_is_taken(seconds: float) -> None:
    assert require_stall_timeout(seconds) == seconds
