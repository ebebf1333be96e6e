"""Attacks on a fleet: items and lines of every kind, scripts that return anything, browsers that die, and a result file
that is cut between two runs. Each item has a result or an error of its own, and the file one line of JSON for each.

The judge of what is JSON is a strict parser; the browsers are made of paper and answer an item with itself.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from distributed import Client, LocalCluster

from capstan.errors import CapstanError
from capstan_host.commands.fleet import lines
from capstan_host.fleet import Fleet, Item, ResultFile
from capstan_host.fleet import worker as fleet_worker
from capstan_host.fleet.browsers import Serving
from capstan_host.fleet.items import Entry
from capstan_host.headless.chromium import BrowserError

from .deadline import deadline
from .mutations import mutated_bytes
from .report import Outcome, fault_of
from .share import Share

__all__ = ["attack_fleet"]

SAME = "def run(x):\n    return x\n"
MOST_DEPTH = 64
"""Deeper values may be refused; less deep ones may not, with the arrays of a line around them."""
MARGIN = 4
DEADLY = "kill"
"""The browser of this item dies."""
RETURNS = {"return nan": math.nan, "return infinity": [-math.inf], "return deep": 200}
"""The results of some items, in place of themselves."""


@cache
def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


SPECIAL: dict[str, Callable[[], Any]] = {
    "$nan": lambda: math.nan,
    "$infinity": lambda: -math.inf,
    "$set": lambda: {1, 2},
    "$bytes": lambda: b"a",
    "$object": object,
    "$deep 60": lambda: nested(56),
    "$deep 200": lambda: nested(200),
    "$deep 100000": lambda: nested(100_000),
    "$digits": lambda: 10**5000,
    "$half": lambda: "a\ud800",
    "$other half": lambda: "\udc00",
    "$nul": lambda: "\0",
    "$long": lambda: "x" * 100_000,
    "$number keys": lambda: {1: 2},
    "$mixed keys": lambda: {1: 2, "a": 3},
}
"""Values that a case names, since JSON does not have them."""
PLAIN = (
    "a",
    "",
    0,
    -1,
    2**70,
    1.5,
    None,
    True,
    [],
    {},
    ["a", [1]],
    {"b": {"c": None}},
    "\u2028\U0001f600",
    DEADLY,
    *RETURNS,
)


class EchoSlot:
    """A browser on paper."""

    @classmethod
    def several(cls, serving: Serving) -> list[EchoSlot]:
        return [cls() for _ in range(serving.browsers)]

    async def answer(self, job: dict[str, Any], given: Sequence[Entry], done: Callable[[int, Any], None]) -> None:
        for place, entry in enumerate(given):
            # The page has it as JSON.
            value = json.loads(json.dumps(entry.input))
            if value == DEADLY:
                raise BrowserError("the browser crashed or was closed")
            returned = RETURNS.get(value, value) if isinstance(value, str) else value
            done(place, {"number": place, "result": {"value": nested(200) if value == "return deep" else returned}})

    async def close(self) -> None: ...


def attack_fleet(share: Share, corpus: list[bytes]) -> Outcome:
    """So many runs, each twice with one result file, and those of the corpus."""
    outcome = Outcome("fleet")
    with fleet() as running, tempfile.TemporaryDirectory() as place:
        for number, case in enumerate([*corpus, *share.cases(outcome.kind, made)]):
            out = Path(place) / f"{number}.jsonl"
            with deadline(outcome, case):
                try:
                    failed = tried(running, json.loads(case), out)
                except (CapstanError, AssertionError) as error:
                    outcome.fail(case, f"{type(error).__name__}: {error}")
                except Exception as error:
                    outcome.fail(case, f"the run ended with {type(error).__name__}: {str(error)[:200]}")
                else:
                    outcome.refused += failed > 0
                    outcome.taken += failed == 0
            out.unlink(missing_ok=True)
    return outcome


@contextmanager
def fleet() -> Iterator[Fleet]:
    """A fleet of paper."""
    logging.getLogger("distributed.worker.capstan").setLevel(logging.ERROR)
    with (
        mock.patch.object(fleet_worker, "HeadlessSlot", EchoSlot),
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        Fleet(client, "/models/paper", 2, attempts=2) as made_of_paper,
    ):
        yield made_of_paper


def made(random: Random) -> bytes:
    """A run as JSON: `items`, or the `lines` of a file in Latin-1; whether the results are `ordered`, the `batch`, and
    how much of the result file is left for the second run, `left`."""
    run: dict[str, Any] = {"ordered": random.random() < 0.5, "batch": random.randrange(1, 6), "left": random.random()}
    items = [made_item(random) for _ in range(random.randrange(1, 12))]
    if random.random() < 0.6:
        return json.dumps({**run, "items": items}).encode()
    data = b"\n".join(json.dumps(item).encode() for item in items)
    for _ in range(random.randrange(3)):
        data = mutated_bytes(random, data)
    if random.random() < 0.3:
        data += random.choice(
            (b"\n" + b"[" * 100_000, b"\nNaN", b"\n" + b"1" * 5000, b"\n\0", b"\n", b"\n\xff", b"\n{}\n\n")
        )
    return json.dumps({**run, "lines": data[: 1 << 20].decode("latin-1")}).encode()


def made_item(random: Random) -> Any:
    value: Any = random.choice((*PLAIN, *SPECIAL))
    if random.random() < 0.2:
        value = random.choice(([value], {"a": value}, [1, {"b": [value]}]))
    if random.random() < 0.3:
        return {"id": random.choice((0, 1, 5, "0", "x", "x", "", *SPECIAL, True, None, [], 2**70)), "input": value}
    return value


def tried(running: Fleet, case: dict[str, Any], out: Path) -> int:
    """How many items failed that may fail. Raises AssertionError for what is wrong."""
    prompts = out.with_suffix(".prompts")
    if "lines" in case:
        data = case["lines"].encode("latin-1")
        prompts.write_bytes(data)
        given = [parsed(line) for line in data.removesuffix(b"\n").split(b"\n")] if data else []
    else:
        given = [built(item) for item in case["items"]]

    def items() -> Iterable[Any]:
        return lines(str(prompts)) if "lines" in case else given

    options: dict[str, Any] = {"out": out, "ordered": case["ordered"], "batch": case["batch"]}
    first = list(running.map(SAME, items(), **options))
    failed = judged(given, first, out)
    if case["ordered"]:
        assert [item.index for item in first] == [*range(len(given))], "the results are in another order"
    written = out.read_bytes()
    out.write_bytes(written[: round(case["left"] * len(written))])
    second = list(running.map(SAME, items(), **options))
    known = {item.index for item in second}
    judged(given, [*second, *(item for item in first if item.index not in known)], out)
    assert not out.with_name(f"{out.name}.lock").exists(), "a lock is left"
    with ResultFile(out) as file:
        assert len(file.finished) == len(given) - failed, f"{len(file.finished)} of {len(given) - failed} are finished"
    return failed


class NoValueError(Exception):
    """A line that is not JSON."""


def parsed(line: bytes) -> Any:
    """The value of a line by a strict parser; NoValueError, as a value, for a line that has none."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(line.decode("utf-8-sig"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return NoValueError(str(error))


def built(value: Any) -> Any:
    """An item with the values that it names."""
    if isinstance(value, str):
        return SPECIAL.get(value, lambda: value)()
    if isinstance(value, list):
        return [built(each) for each in value]
    return {name: built(each) for name, each in value.items()} if isinstance(value, dict) else value


def judged(given: list[Any], found: list[Item], out: Path) -> int:
    """The number of items with an error. Raises AssertionError for a missing one, a wrong one, or a wrong file."""
    by_index = {item.index: item for item in found}
    assert sorted(item.index for item in found) == [*range(len(given))], "an item has no result, or two"
    seen: set[str] = set()
    for index, item in enumerate(given):
        keyed = isinstance(item, dict) and item.get("id") is not None
        value = item["input"] if isinstance(item, dict) and set(item) == {"id", "input"} else item
        name, result = (item["id"] if keyed else index), by_index[index]
        assert result.id not in seen, f"two results have id {result.id[:50]!r}"
        may_fail = (
            isinstance(item, NoValueError)
            or isinstance(name, bool)
            or not isinstance(name, str | int)
            or (isinstance(name, int) and name.bit_length() > 128)
            or str(name) in seen
            or not plain(value)
            or (isinstance(value, str) and (value == DEADLY or value in RETURNS))
        )
        seen.add(result.id)
        if result.error is None:
            assert not may_fail or depth(value) >= MOST_DEPTH - MARGIN, f"item {index} is none, and has a result"
            assert result.value == json.loads(json.dumps(value)), f"item {index} has another result"
        else:
            assert may_fail or depth(value) >= MOST_DEPTH - MARGIN, f"item {index} failed: {result.error.message[:200]}"
            why = fault_of(result.error.message)
            assert why is None, why
    written = [parsed(line) for line in out.read_bytes().split(b"\n")[:-1]]
    assert not any(isinstance(line, NoValueError) for line in written), "a line of the file is not JSON"
    assert sorted(line["index"] for line in written) == [*range(len(given))], "the file lacks a line, or has two"
    assert {line["id"] for line in written} == {item.id for item in found}, "the file has other ids"
    return sum(item.error is not None for item in found)


def plain(value: Any) -> bool:
    """Whether JSON has the value."""
    try:
        json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def depth(value: Any) -> int:
    """How deep a value is nested."""
    found, layer = 0, [value]
    while layer := [each for outer in layer if isinstance(outer, list | dict) for each in inner(outer)]:
        found += 1
    return found + 1


def inner(value: list[Any] | dict[Any, Any]) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value
