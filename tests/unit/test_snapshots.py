"""States that each run overwrites: the positions that can be gone back to are those of snapshots, and none is stale."""

from __future__ import annotations

import random

import pytest

from capstan.device.snapshots import EMPTY, Snapshots

SLOTS = 6


class Stage:
    """A state that is the list of tokens it was computed from, and its snapshots."""

    def __init__(self) -> None:
        self.state: list[int] = []
        self.slots: dict[int, list[int]] = {}
        self.points = Snapshots(SLOTS, self.keep, self.bring)

    def keep(self, slot: int) -> None:
        assert 0 <= slot < SLOTS
        self.slots[slot] = list(self.state)

    def bring(self, slot: int) -> None:
        self.state = [] if slot == EMPTY else list(self.slots[slot])

    def prefill(self, tokens: list[int], past: int) -> None:
        self.points.go_to(past)
        self.points.before_last_run()
        self.points.live = None
        self.state += tokens
        self.points.live = past + len(tokens)

    def burst(self, tokens: list[int]) -> None:
        assert self.points.live is not None
        self.points.before_burst()
        self.state += tokens
        self.points.live += len(tokens)


def test_whatever_was_run_ahead_the_state_is_that_of_the_tokens_before_it() -> None:
    random.seed(5)
    stage = Stage()
    sequence: list[int] = []
    for _ in range(300):
        kept = random.randrange(len(sequence) + 1)
        past = stage.points.nearest(kept)
        assert past <= kept
        sequence = sequence[:kept] + [random.randrange(100) for _ in range(random.randrange(1, 20))]
        stage.prefill(sequence[past:], past)
        assert stage.state == sequence
        for _ in range(random.randrange(8)):
            # Run-ahead tokens may be discarded.
            ahead = [random.randrange(100) for _ in range(random.randrange(1, 16))]
            stage.burst(ahead)
            sequence += ahead[: random.randrange(len(ahead) + 1)] if random.random() < 0.3 else ahead
            if len(sequence) != len(stage.state):
                break


def test_bursts_that_are_under_way_are_discarded_to_the_start_of_the_one_that_is_read() -> None:
    stage = Stage()
    stage.prefill(list(range(100)), 0)
    starts = []
    for _ in range(9):
        starts.append(stage.points.live)
        stage.burst(list(range(16)))
    # One burst is being read and four are under way, which is the limit.
    assert [stage.points.nearest(start + 5) for start in starts[-5:] if start is not None] == starts[-5:]


def test_the_state_before_the_last_run_of_the_prompt_outlives_bursts() -> None:
    stage = Stage()
    stage.prefill(list(range(100)), 0)
    stage.prefill(list(range(7)), 100)
    for _ in range(40):
        stage.burst(list(range(16)))
    assert stage.points.nearest(106) == 100


def test_snapshots_are_apart_by_some_positions() -> None:
    stage = Stage()
    stage.prefill([1, 2, 3], 0)
    for token in range(30):
        stage.burst([token])
    assert sorted(stage.points.taken.values()) == [8, 16, 24, 32]


def test_a_state_that_nobody_knows_is_not_gone_on_from() -> None:
    stage = Stage()
    stage.prefill([1, 2, 3], 0)
    stage.points.live = None
    assert stage.points.nearest(3) == 0
    stage.prefill([4, 5], 0)
    assert stage.state == [4, 5]


def test_a_position_without_a_snapshot_is_refused() -> None:
    stage = Stage()
    stage.prefill(list(range(20)), 0)
    with pytest.raises(ValueError, match=r"no snapshot of position 7"):
        stage.points.go_to(7)
