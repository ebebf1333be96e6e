"""Python's and JavaScript's share of a token's time, from the stamps of bursts."""

from __future__ import annotations

from capstan import Timing
from capstan.device.row_interface import Burst
from capstan.generation.token_times import BurstTimes


def burst(submitted: float, entered: float, host: float) -> Burst:
    return Burst(((1, 2),), submitted, entered - 0.75, entered - 0.5, host, entered)


def test_pythons_time_is_that_between_being_given_ids_and_the_next_wait_without_javascripts() -> None:
    timing = Timing()
    # Two bursts are submitted before the first wait; each is followed by another.
    timing.wait(10.0)
    timing.receive(burst(9.0, 20.0, 0.5))
    assert (timing.host_ms, timing.python_ms) == (0.5, 0.0)
    timing.wait(23.0)
    timing.receive(burst(9.5, 30.0, 0.5))
    timing.wait(34.0)
    timing.receive(burst(22.0, 40.0, 0.25))
    assert timing.host_ms == 1.25
    assert timing.python_ms == 3.0 + 4.0 - 0.25, "only the third burst was encoded between ids and a wait"


def test_bursts_are_kept_where_there_is_a_list_for_them() -> None:
    timing = Timing()
    timing.wait(1.0)
    timing.receive(burst(2.0, 8.0, 0.5))
    assert timing.bursts is None
    timing.bursts = []
    timing.wait(9.0)
    timing.receive(burst(10.0, 12.0, 0.25))
    assert timing.bursts == [BurstTimes(9.75, 10.0, 11.25, 11.5, 12.0, 2)]


def test_computing_is_told_from_copying_and_counted_once_where_bursts_are_queued() -> None:
    timing = Timing()
    timing.receive(Burst(((1, 2),), 10.0, 16.0, 16.5, 0.1, 17.0))
    timing.receive(Burst(((1, 2),), 11.0, 22.0, 22.25, 0.1, 23.0))
    assert (timing.waiting_ms, timing.copying_ms) == (6.0 + 6.0, 0.5 + 0.25), "the second one waited for the first"
    timing.receive(Burst(((1, 2),), 30.0, 31.0, 35.0, 0.1, 36.0))
    assert (timing.waiting_ms, timing.copying_ms) == (13.0, 4.75), "the device rested before the third"
    # Rows that end together may be reported in any order.
    timing.receive(Burst(((1, 2),), 30.0, 30.5, 36.0, 0.1, 36.0))
    assert timing.waiting_ms == 13.0


def test_a_burst_that_is_encoded_during_the_wait_takes_nothing_from_pythons_time() -> None:
    timing = Timing()
    for start in (0.0, 10.0, 20.0):
        timing.wait(start)
        timing.receive(burst(start + 5.0, start + 9.0, 5.0))
    assert (timing.host_ms, timing.python_ms) == (15.0, 2.0)


def test_what_lies_between_a_pause_and_the_next_burst_is_nobodys_time() -> None:
    timing = Timing()
    timing.wait(0.0)
    timing.receive(burst(0.0, 5.0, 1.0))
    timing.wait(7.0)
    timing.receive(burst(6.0, 8.0, 1.0))
    timing.pause()
    timing.wait(1000.0)
    timing.receive(burst(900.0, 1001.0, 1.0))
    assert (timing.host_ms, timing.python_ms) == (3.0, 1.0)


def test_rates_are_known_from_the_tokens_they_need_on() -> None:
    for started, first, last, tokens, rates in (
        (None, None, None, 0, (None, None)),
        (100.0, None, None, 0, (None, None)),
        (100.0, 104.0, 104.0, 1, (4.0, None)),
        (100.0, 104.0, 104.0, 2, (4.0, None)),  # two tokens of one burst took no time
        (100.0, 104.0, 106.0, 4, (4.0, 1500.0)),
        (None, 1.0, 1.5, 2, (None, 2000.0)),
    ):
        timing = Timing(started, first, last, tokens)
        assert (timing.time_to_first_token, timing.tokens_per_second) == rates


def test_a_wait_that_is_begun_again_is_not_pythons_time() -> None:
    timing = Timing()
    timing.wait(0.0)
    timing.receive(burst(0.0, 5.0, 1.0))
    timing.wait(7.0)
    timing.wait(90.0)
    assert timing.python_ms == 2.0
