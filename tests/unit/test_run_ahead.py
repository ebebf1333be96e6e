"""How many decode steps go into one submit."""

from __future__ import annotations

from typing import Any, cast

import pytest

from capstan import GeneratorParams, Model
from capstan.device.row_interface import Burst
from capstan.errors import OptionError
from capstan.generation.run_ahead import BURST_MS, LARGEST, RESTART, RunAhead
from tests.unit.paper_model import PaperModel


class Queue:
    """A GPU that takes `step` ms for each pick, with bursts always under way."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 100.0

    def burst(self, picks: int) -> Burst:
        submitted, self.now = self.now - 1.0, self.now + picks * self.step
        return Burst(((1,) * picks,), submitted, self.now, self.now, 0.1, 0.0)


def settled(run_ahead: RunAhead, step: float, bursts: int = 12) -> list[int]:
    queue, chosen = Queue(step), []
    for _ in range(bursts):
        chosen.append(run_ahead.next())
        run_ahead.observe(queue.burst(chosen[-1]))
    return chosen


@pytest.mark.parametrize("fixed", [1, 3, 8, 64])
def test_a_fixed_run_ahead_never_changes(fixed: int) -> None:
    assert set(settled(RunAhead(fixed, 64), 0.5)) == {fixed}


@pytest.mark.parametrize("fixed", [0, -1, 65, 1.5, "3"])
def test_a_fixed_run_ahead_out_of_range_is_refused(fixed: Any) -> None:
    with pytest.raises(OptionError, match=f"run_ahead is {fixed!r}(; it must be from 1 to 64$|, .* an integer)"):
        GeneratorParams(cast(Model, PaperModel()), run_ahead=fixed)


def test_a_device_that_takes_one_pick_gets_one() -> None:
    assert RunAhead(8, 1).next() == 1
    assert set(settled(RunAhead(None, 1), 0.5)) == {1}


def test_the_first_burst_is_short() -> None:
    assert RunAhead(None, 64).next() == 1


@pytest.mark.parametrize("step", [0.5, 2.0, 3.9, 6.0, 50.0])
def test_bursts_grow_to_about_the_wanted_time(step: float) -> None:
    last = settled(RunAhead(None, 64), step)[-1]
    assert last == min(LARGEST, max(1, round(BURST_MS / step)))


def test_a_loop_may_want_shorter_bursts() -> None:
    assert settled(RunAhead(None, 64, burst_ms=3.0), 0.5)[-1] == 6


def test_each_burst_is_at_most_half_as_long_again_as_the_one_before_it() -> None:
    chosen = settled(RunAhead(None, 64), 0.1)
    # The first burst has no interval before it.
    assert chosen[:9] == [1, 1, 2, 3, 4, 6, 9, 13, 16]


def test_it_starts_where_the_last_one_ended() -> None:
    last = RunAhead(None, 64)
    settled(last, 1.0)
    assert last.usual == round(BURST_MS / 1.0)
    again = RunAhead(None, 64, last.usual)
    assert [again.next() for _ in range(3)] == [RESTART, 4, last.usual], "the GPU waits for the first one"
    assert RunAhead(None, 1, last.usual).next() == 1, "a decoder without bursts has none"
    assert RunAhead(3, 64, last.usual).next() == 3
    again.pause()
    assert [again.next() for _ in range(3)] == [RESTART, 4, last.usual]


def test_after_a_pause_bursts_grow_as_they_are_submitted() -> None:
    run_ahead = RunAhead(None, 64, 16)
    assert [run_ahead.next() for _ in range(6)] == [RESTART, 4, 6, 9, 13, 16]
    slow = RunAhead(None, 64, 5)
    assert [slow.next() for _ in range(4)] == [RESTART, 4, 5, 5]


@pytest.mark.parametrize(
    ("fixed", "first", "most", "wanted"),
    [
        (None, 16, 4, RESTART),
        (None, 16, 2, 2),
        (None, 3, 4, 3),
        (None, 1, 4, 0),
        (None, 16, 0, 0),
        (4, 1, 4, 4),
        (5, 1, 4, 0),
    ],
)
def test_what_is_behind_the_first_pick(fixed: int | None, first: int, most: int, wanted: int) -> None:
    assert RunAhead(fixed, 64, first).after_first(most) == wanted


def test_the_burst_after_the_one_behind_the_first_is_longer() -> None:
    run_ahead = RunAhead(None, 64, 16)
    assert [run_ahead.after_first(4), run_ahead.next(), run_ahead.next()] == [RESTART, 4, 6]


def test_one_slow_burst_shortens_the_next_at_once() -> None:
    run_ahead = RunAhead(None, 64)
    settled(run_ahead, 1.0)
    assert run_ahead.next() == round(BURST_MS / 1.0)
    run_ahead.observe(Burst(((1,),), 0.0, 10_000.0, 10_000.0, 0.1, 0.0))
    run_ahead.observe(Burst(((1,),), 9_000.0, 10_100.0, 10_100.0, 0.1, 0.0))
    assert run_ahead.next() == 1


def test_a_gap_of_the_readers_is_not_measured() -> None:
    run_ahead = RunAhead(None, 64)
    run_ahead.observe(Burst(((1,),), 0.0, 10.0, 10.0, 0.1, 0.0))
    run_ahead.observe(Burst(((1,),), 5.0, 12.0, 12.0, 0.1, 0.0))
    before = run_ahead.next()
    # Submitted after the last burst was readable: the queue had run empty.
    run_ahead.observe(Burst(((1,) * before,), 5_000.0, 5_004.0, 5_004.0, 0.1, 0.0))
    assert run_ahead.next() == before


def test_a_pause_is_not_measured() -> None:
    run_ahead = RunAhead(None, 64)
    run_ahead.observe(Burst(((1,),), 0.0, 10.0, 10.0, 0.1, 0.0))
    run_ahead.pause()
    run_ahead.observe(Burst(((1,),), 5.0, 10.1, 10.1, 0.1, 0.0))
    assert run_ahead.next() == 1


def test_bursts_that_are_readable_together_do_not_divide_by_zero() -> None:
    run_ahead = RunAhead(None, 64)
    run_ahead.observe(Burst(((1,),), 0.0, 10.0, 10.0, 0.1, 0.0))
    run_ahead.observe(Burst(((1,),), 5.0, 10.0, 10.0, 0.1, 0.0))
    assert run_ahead.next() == RESTART
