"""The results of a bench: answers after a rest, the first uses of features, and the pace of several rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

__all__ = ["rest", "rows", "uses"]

Outcome = dict[str, Any]
"""A step with its `data`."""

PARTS = {"2 to 16": (0, 15), "17 to 40": (15, 39), "41 to 100": (39, 99)}
"""The parts of an answer: places of arrivals between which tokens are timed."""


def rest(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """By row, medians of: milliseconds to the first token, milliseconds a token in each part of the answer, tokens a
    second of the whole answer."""
    rows: dict[str, Any] = {}
    for row in dict.fromkeys(outcome["row"] for outcome in outcomes):
        steps = [outcome for outcome in outcomes if outcome["row"] == row and outcome["warm"]]
        answers = [step["data"]["arrivals_ms"] for step in steps]
        if answers:
            rows[row] = {
                "first_token_ms": median(times[0] for times in answers),
                "tokens_per_s": median(1000 * len(times) / times[-1] for times in answers),
                "ms_per_token": {
                    name: median((times[end] - times[begin]) / (end - begin) for times in answers)
                    for name, (begin, end) in PARTS.items()
                },
            }
    return rows


def uses(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """By visit and feature: milliseconds of the first use, of the second, and the median of the last five, to the first
    token and in all; and what each of the first two recorded and checked."""
    visits: dict[str, Any] = {}
    for step in (each for each in outcomes if each.get("function") == "uses"):
        visits[step["row"]] = {
            feature: {
                **{
                    what: [found[0][what], found[1][what], median(use[what] for use in found[-5:])]
                    for what in ("first_ms", "whole_ms")
                },
                "made_ms": [found[0]["made_ms"], found[1]["made_ms"]],
            }
            for feature, found in step["data"]["uses"].items()
        }
    return visits


def rows(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """By way of generating: median milliseconds of a step, tokens a second of all sequences, and how often that is of
    one row's, for an engine of one request's."""
    found: dict[str, Any] = {}
    for outcome in outcomes:
        for name, pace in outcome["data"]["paces"].items():
            step = median(pace["step_ms"])
            speed = 1000 * pace["sequences"] / step
            found[name] = {"step_ms": step, "tokens_per_s": speed}
            single = found["an engine of 1" if "engine" in name else "1 row"]
            found[name]["times"] = speed / single["tokens_per_s"]
    return found
