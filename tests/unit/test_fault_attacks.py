"""The short form of `build.py test --faults` on CPython, and that the attacks tell what is wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from buildtools import ROOT
from capstan.errors import ConfigError
from tests.faults import deadline, processes, report
from tests.faults.main import attack_target, attacks_here, model_files
from tests.faults.report import Outcome, attack
from tests.faults.share import Share
from tests.faults.targets import targets

COUNT, SEED = 15, 1


def test_bad_input_ends_in_errors_of_ours() -> None:
    outcomes = [run() for run in attacks_here(Share(COUNT, SEED)).values()]
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    assert not failures
    assert all(outcome.tried >= COUNT for outcome in outcomes)
    assert sum(outcome.refused for outcome in outcomes) > sum(outcome.tried for outcome in outcomes) / 3


def test_the_same_seed_makes_the_same_cases() -> None:
    cases: list[list[bytes]] = []
    for seed in (1, 1, 2):
        seen: list[bytes] = []

        async def look(case: bytes, seen: list[bytes] = seen) -> None:
            seen.append(case)

        for target in targets(model_files()):
            attack_target(type(target)(target.kind, target.good, target.mutate, look), Share(5, seed))
        cases.append(seen)
    assert cases[0] == cases[1] != cases[2]


def test_parts_are_the_cases_of_a_whole_run() -> None:
    whole = [*Share(7, SEED).cases("test", lambda random: random.random())]
    parts = [[*Share(7, SEED, part, 3).cases("test", lambda random: random.random())] for part in (1, 2, 3)]
    assert [parts[number % 3][number // 3] for number in range(7)] == whole


class TwoLinesError(ConfigError):
    def __str__(self) -> str:
        return "two\nlines"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("x"), "KeyError: 'x' at "),
        (RecursionError("deep"), "RecursionError: deep at "),
        (AssertionError("a path"), "wrong: a path"),
        (TwoLinesError(), "a message of several lines: "),
    ],
)
def test_what_is_no_short_error_of_ours_is_a_failure(raised: Exception, told: str) -> None:
    async def target(case: bytes) -> None:
        raise raised

    outcome = Outcome("test")
    asyncio.run(attack(outcome, b"case", target))
    [failure] = outcome.failures
    assert failure.why.startswith(told)
    assert (outcome.tried, outcome.refused, outcome.taken) == (1, 0, 0)


def hold_python() -> None:
    while True:
        with suppress(Exception):
            time.sleep(0.01)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("hang", [hold_python, wait_for_ever])
async def test_a_case_that_hangs_is_a_failure_and_the_next_one_is_tried(
    hang: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr(deadline, "MORE_SECONDS", 0.2)
    outcome = Outcome("test")

    async def target(case: bytes) -> None:
        if case == b"hangs" and (waiting := hang()):
            await waiting

    for case in (b"good", b"hangs", b"next"):
        with deadline.deadline(outcome, case, report.DEADLINE_SECONDS):
            await attack(outcome, case, target)
    [failure] = outcome.failures
    assert failure.case == b"hangs"
    assert failure.why.startswith("no end within 0.")
    assert outcome.taken == 2


FAULTY = """
import json, os, sys, time
from tests.faults.deadline import kept_until_end
from tests.faults.report import Outcome

options = dict(argument.split("=") for argument in sys.argv[1:] if "--class" not in argument)
for kind in [argument.removeprefix("--class=") for argument in sys.argv if "--class" in argument]:
    with kept_until_end(b"the case", 0.2):
        if kind == "dies":
            os._exit(3)
        while kind == "hangs":
            time.sleep(1)
    with open(options["--out"], "a") as file:
        file.write(json.dumps(Outcome(kind, taken=1).as_json()) + chr(10))
"""


def test_a_process_that_dies_or_hangs_costs_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY)
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, str(program)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "py_src"), str(ROOT)]))
    found = processes.spread([], ["first", "dies", "second", "hangs", "last"], 2)
    assert [(outcome.kind, outcome.taken, len(outcome.failures)) for outcome in found] == [
        ("first", 2, 0),
        ("dies", 0, 2),
        ("second", 2, 0),
        ("hangs", 0, 2),
        ("last", 2, 0),
    ]
    assert {failure.case for outcome in found for failure in outcome.failures} == {b"the case"}


def test_messages_have_one_line_and_a_bound() -> None:
    assert str(ConfigError("of\na\r\nlibrary\n")) == "of a library"
    message = str(ConfigError("begin " + "x" * 10**6 + " end"))
    assert len(message) < 1600
    assert message.startswith("begin xxx")
    assert message.endswith("xxx end")
    assert "(998510 characters)" in message


@pytest.mark.extended
def test_the_command_prints_a_table_and_ends_well() -> None:
    command = [sys.executable, str(ROOT / "build.py"), "test", "--faults", "--no-page", "--count", "2", "--seed", "3"]
    done = subprocess.run([*command, "--processes", "2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["class", "cases", "taken", "refused", "failed", "seconds"]
    rows = {name: counts for name, *counts, _ in (line.rsplit(maxsplit=5) for line in lines)}
    assert rows.keys() >= {"config", "graph", "tokenizer", "downloads", "requests", "server", "fleet"}
    assert rows["API values"][0] == "20", "both processes are counted"
    assert {failed for *_, failed in rows.values()} == {"0"}
    assert all(f"{kind} (1/2) ..." in done.stderr for kind in rows), "each class says that it begins"
