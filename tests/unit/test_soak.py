"""The steps of a soak (`build.py test --soak`), and its report of memory that grows and of a step that fails."""

from __future__ import annotations

from typing import Any

from tests.soak.main import run
from tests.soak.memory import MIB, Life
from tests.soak.plans import Step, chat_of, oracle_actions, script_of, step_of
from tests.soak.run import SoakError

STEPS = 400


def test_a_seed_gives_the_same_steps_and_another_one_gives_others() -> None:
    made = [
        ([step_of(seed, number, True) for number in range(STEPS)], script_of(seed, 3), chat_of(seed, 3))
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1]
    assert all(one != other for one, other in zip(made[0], made[2], strict=True))


def test_the_oracle_is_given_the_lengths_that_were_rewound_to() -> None:
    actions: list[list[Any]] = [["append", [5, 6]], ["cancel", 7, 1, 3], ["rewind", 0.5], ["generate", 2]]
    assert oracle_actions(actions, [4]) == [("append", [5, 6]), ("generate", 7), ("rewind", 4), ("generate", 2)]


def life(*mib: float, what: str = "renderer") -> Life:
    return Life(what, 1, [(40.0 * number, size * MIB) for number, size in enumerate(mib)])


def test_memory_that_comes_at_first_is_flat_and_what_goes_on_growing_is_not() -> None:
    assert life(100, 300, 500, *[500] * 12).flat
    assert life(*[500] * 6, 900, *[500] * 8).flat, "one sample among many"
    assert not life(*range(100, 400, 20)).flat
    small = [100.0] * 10
    assert life(*small, *[115.0] * 5).flat
    assert not life(*small, *[117.0] * 5).flat
    assert not Life(Life.COUNT, 1, [(number, 50_000 + 500 * number) for number in range(15)]).flat


class Work:
    """Steps that go well up to one."""

    def __init__(self, bad: int) -> None:
        self.bad, self.done = bad, 0
        self.last: Step | None = None

    def do(self, step: Step) -> None:
        self.last = step
        if step.number == self.bad:
            raise SoakError("other ids")
        self.done += 1

    def look(self) -> None:
        pass


def test_a_failed_step_is_told_with_how_to_repeat_it() -> None:
    work = Work(bad=3)
    failure, steps = run(work, 1.0, 5, None)
    assert steps == work.done == 3
    assert failure == f"{step_of(5, 3, False)}, repeated by --seed 5 --step 3: other ids"
    again = Work(bad=3)
    assert run(again, 1.0, 5, step_of(5, 3, True)) == (
        f"{step_of(5, 3, True)}, repeated by --seed 5 --step 3 --ends: other ids",
        0,
    )
    assert again.last == step_of(5, 3, True)
