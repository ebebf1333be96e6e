"""The sections about pages that draw, and about KV caches: their steps, their summaries, the cells of their tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Any

from .subjects import Subject, prompt_for

__all__ = [
    "CACHES_HEAD",
    "CACHE_ROWS",
    "FRAMES_HEAD",
    "SPEED_HEAD",
    "HARDWARE_FRAMES",
    "SOFTWARE_FRAMES",
    "FramesExtent",
    "cache_cells",
    "caches",
    "frame_cells",
    "frames",
    "plan_caches",
    "plan_frames",
    "speed_cells",
]

Step = dict[str, Any]
Outcome = dict[str, Any]


@dataclass(frozen=True)
class FramesExtent:
    """How much of these sections is measured."""

    prompt: int
    tokens: int
    rounds: int
    draws: tuple[str, ...]
    """Ways to draw, of frames.js."""
    bounds: tuple[str, ...]
    """Milliseconds of `Model.load(prefill_ms=)`; 'default' leaves it out."""
    cache_lengths: tuple[int, ...]
    cache_tokens: int
    cache_rounds: int


HARDWARE_FRAMES = FramesExtent(2000, 200, 15, ("canvas", "webgpu"), ("default", "inf"), (128, 1024, 3000), 48, 5)
SOFTWARE_FRAMES = FramesExtent(200, 16, 2, ("canvas",), ("default", "inf"), (16, 64), 8, 2)
SETTLING = 4
"""Rounds before those that count: tapes are made in them, and the length of prefill runs settles."""
ALONE_MS = 3000
"""How long the page draws with nothing under way, for comparison."""

CACHE_ROWS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "tape": ("in place, from a tape", {"capture": "tape"}),
    "int8": ("in 8 bits, from a tape", {"capture": "tape", "kv_cache_dtype": "int8"}),
    "int4": ("in 4 bits, from a tape", {"capture": "tape", "kv_cache_dtype": "int4"}),
    "in_place": ("in place, run by run", {"capture": "off"}),
    "apart": ("apart and copied, run by run", {"capture": "off", "in_place": False}),
}
FRAMES_HEAD = ("gaps", "p50", "p99", "longest", "in the prompt", "after it", "long tasks")
CACHES_HEAD = ("ms/token, median", "p95", "times in place, run by run")


def plan_frames(subject: Subject, measured: FramesExtent) -> Iterator[Step]:
    """A prompt and tokens after it beside a page that draws, by turns with each bound; before that the page alone."""
    if measured.prompt + measured.tokens > subject.context:
        return
    asked = subject.long_prompt(measured.prompt)
    shared = {"action": "frames", "contender": "capstan", "length": measured.prompt}
    for draws in measured.draws:
        yield {**shared, "row": "alone", "draws": draws, "warm": True, "alone": ALONE_MS, "args": {}}
    for turn in range(SETTLING + measured.rounds):
        ways = [(draws, bound) for draws in measured.draws for bound in measured.bounds]
        for draws, bound in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            given = {} if bound == "default" else {"prefill_ms": bound}
            args = {
                "model": subject.address,
                **prompt_for(asked, "capstan"),
                "tokens": measured.tokens,
                "showing": True,
            }
            call = {"function": "generate", "args": {**args, "capture": "tape", **given}}
            yield {**shared, **call, "row": bound, "draws": draws, "round": turn, "warm": turn >= SETTLING}


def plan_caches(subject: Subject, measured: FramesExtent) -> Iterator[Step]:
    """Decode steps with past and present in one buffer and in two, by turns, at each length."""
    for length in measured.cache_lengths:
        if length + measured.cache_tokens > subject.context:
            continue
        asked = subject.long_prompt(length)
        for turn in range(measured.cache_rounds + 1):
            # The first round is in order: before caches are asked for apart, the adapter is probed.
            rows = [*CACHE_ROWS][turn % len(CACHE_ROWS) :] + [*CACHE_ROWS][: turn % len(CACHE_ROWS)]
            for row in rows:
                args = {"model": subject.address, **prompt_for(asked, "capstan"), "tokens": measured.cache_tokens}
                call = {"action": "call", "contender": "capstan", "function": "generate", "row": row}
                given = {**args, **CACHE_ROWS[row][1]}
                yield {**call, "args": given, "length": length, "round": turn, "warm": turn > 0}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def gaps_of(times: Sequence[float], begun: float, ended: float) -> list[float]:
    """Milliseconds between frames that follow each other, of those gaps that touch a span of time."""
    return [b - a for a, b in pairwise(times) if b >= begun and a <= ended]


def frames(outcomes: list[Outcome]) -> dict[str, Any]:
    """By the way of drawing and the bound: gaps between frames over all rounds, first token and tokens a second."""
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for step in outcomes:
        if step["warm"]:
            groups[step["draws"], step["row"]].append(step)
    rows: dict[str, Any] = defaultdict(dict)
    for (draws, row), steps in groups.items():
        data = [step["data"] for step in steps]
        whole: list[float] = []
        parts: dict[str, list[float]] = {"prompt": [], "after": []}
        for found in data:
            begun = found.get("began", found["frames"][0])
            first = begun + found.get("first_ms", 0)
            ended = first + found["rest_ms"] if "rest_ms" in found else found["frames"][-1]
            whole += gaps_of(found["frames"], begun, ended)
            if "began" in found:
                parts["prompt"] += gaps_of(found["frames"], begun, first)
                parts["after"] += gaps_of(found["frames"], first, ended)
        ordered = sorted(whole)
        about: dict[str, Any] = {
            "gaps": len(ordered),
            "p50": percentile(ordered, 0.5),
            "p99": percentile(ordered, 0.99),
            "longest": ordered[-1],
            "longest_prompt": max(parts["prompt"], default=None),
            "longest_after": max(parts["after"], default=None),
            "long_tasks": [task for found in data for task in found["long_tasks"]],
        }
        if "ids" in data[0]:
            tokens = len(data[0]["ids"])
            about["first_ms"] = median(found["first_ms"] for found in data)
            about["tokens_per_s"] = median(1000 * (tokens - 1) / found["rest_ms"] for found in data)
            about["total_ms"] = median(found["first_ms"] + found["rest_ms"] for found in data)
            about["run_tokens"] = sorted({found["run_tokens"] for found in data})
            about["answers"] = len({tuple(found["ids"]) for found in data})
        rows[draws][row] = about
    return dict(rows)


def caches(outcomes: list[Outcome]) -> dict[str, Any]:
    """By length and row: milliseconds a token after the first."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for step in outcomes:
        if step["warm"]:
            groups[str(step["length"]), step["row"]].append(step["data"]["rest_ms"] / (len(step["data"]["ids"]) - 1))
    rows: dict[str, Any] = defaultdict(dict)
    for (length, row), times in groups.items():
        rows[length][row] = {"median": median(times), "p95": percentile(sorted(times), 0.95), "all": times}
    return dict(rows)


def frame_cells(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each bound, of one way of drawing."""
    return [(titled(row), *(told(about, name) for name in FRAME_FIELDS)) for row, about in found.items()]


FRAME_FIELDS = ("gaps", "p50", "p99", "longest", "longest_prompt", "longest_after", "long_tasks")


def titled(row: str) -> str:
    """The title of a row of frames."""
    known = {"alone": "the page alone", "default": "as it is without options", "inf": "runs without a bound"}
    return known.get(row, f"runs of {row} ms at most")


def told(about: Mapping[str, Any], name: str) -> str:
    value = about[name]
    if name == "long_tasks":
        return str(len(value))
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def speed_cells(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each bound: what the prompt and the tokens took, also as a share of what they take without a bound."""
    base = found.get("inf", {}).get("total_ms")
    return [
        (
            titled(row),
            f"{about['first_ms']:.1f}",
            f"{about['tokens_per_s']:.0f}",
            f"{about['total_ms']:.1f}",
            "-" if base is None else f"{about['total_ms'] / base:.3f}",
            ", ".join(map(str, about["run_tokens"])),
            str(about["answers"]),
        )
        for row, about in found.items()
        if "total_ms" in about
    ]


SPEED_HEAD = ("first token, ms", "tokens/s after it", "both, ms", "times unbounded", "tokens of a run", "answers")


def cache_cells(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each way that caches are written, at one length."""
    base = found.get("in_place", {}).get("median")
    return [
        (
            CACHE_ROWS[row][0],
            f"{times['median']:.3f}",
            f"{times['p95']:.3f}",
            "-" if base is None else f"{times['median'] / base:.2f}",
        )
        for row, times in found.items()
    ]
