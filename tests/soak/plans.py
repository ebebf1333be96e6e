"""The steps of a soak, each made from a seed, so that it can be repeated alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

__all__ = ["CHAT_MODEL", "MODELS", "VARIANTS", "Step", "chat_of", "oracle_actions", "script_of", "step_of"]

MODELS = ("nano-llama", "nano-qwen2")
CHAT_MODEL = "nano-qwen2"
VARIANTS = 4
"""Different scripts of a seed, and as many conversations: each is run undisturbed before it is disturbed."""
PREFIX_BYTES = 1 << 20
VOCABULARY = 300
"""Prompts have tokens below this, which are in every model's vocabulary."""
WORDS = ("hello", "more", "why", "tell me about a model", "again", "what is a web page")
SCRIPTS = 0.75
"""The share of steps that are scripts; the others are conversations."""
INSIDE = (("nothing", 3), ("destroy", 4), ("twice", 1))
"""Faults inside a step, by weight: none, the device destroyed once, or twice."""
OUTSIDE = (("gpu", 3), ("worker", 3), ("reload", 2))
"""Faults while processes may end, by weight: the GPU process killed, the worker ended, the page reloaded."""


@dataclass(frozen=True)
class Step:
    """One of a soak: a script or a conversation, what goes wrong in it, and after which shares of the time that it
    takes undisturbed."""

    number: int
    kind: str
    variant: int
    fault: str
    at: tuple[float, ...]
    ends: bool
    """Whether it is of the time in which processes end."""

    def __str__(self) -> str:
        when = " and ".join(f"{100 * share:.0f} %" for share in self.at)
        return f"step {self.number}: {self.kind} {self.variant}, {self.fault}{' after ' * bool(when)}{when}"


def step_of(seed: int, number: int, ends: bool) -> Step:
    """The step of that number; `ends` lets processes end, too."""
    random = Random(f"soak {seed} step {number} {ends}")
    kind = "script" if random.random() < SCRIPTS else "chat"
    faults = [*INSIDE, *(OUTSIDE if ends else ())]
    [fault] = random.choices([name for name, _ in faults], [weight for _, weight in faults])
    times = {"nothing": 0, "twice": 2}.get(fault, 1)
    at = tuple(sorted(round(random.random(), 3) for _ in range(times)))
    return Step(number, kind, random.randrange(VARIANTS), fault, at, ends)


def script_of(seed: int, variant: int) -> dict[str, Any]:
    """A model and groups of generators, those of a group at work at the same time: what soaking.py takes."""
    random = Random(f"soak {seed} script {variant}")
    groups = [[generator_of(random) for _ in range(random.choice((1, 1, 2)))] for _ in range(random.randint(2, 4))]
    # Rows that are shared were computed in other parts, too.
    drawn = any(generator["search"]["do_sample"] for group in groups for generator in group)
    shared = 0 if drawn else random.choice((0, PREFIX_BYTES))
    return {"model": random.choice(MODELS), "prefix_cache": shared, "groups": groups}


def generator_of(random: Random) -> dict[str, Any]:
    """One that picks greedily or draws. A draw falls together with rounding once in many thousands, so that those of
    cancelled runs, which are computed in other parts, are not drawn."""
    greedy = random.random() < 0.6
    search: dict[str, Any] = {"do_sample": False}
    if not greedy:
        search = {"do_sample": True, "temperature": 1.2, "top_k": 40, "random_seed": random.randrange(1000)}
    actions: list[list[Any]] = [["append", prompt_of(random, 24)], ["generate", random.randint(4, 40)]]
    for _ in range(random.randint(1, 4)):
        verb = random.choice(("append", "generate", "rewind", "cancel") if greedy else ("append", "generate"))
        if verb == "append":
            actions += [["append", prompt_of(random, 12)], ["generate", random.randint(1, 16)]]
        elif verb == "rewind":
            actions += [["rewind", round(0.2 + 0.8 * random.random(), 2)], ["generate", random.randint(1, 24)]]
        elif verb == "cancel":
            actions.append(["cancel", random.randint(2, 24), random.randrange(2), random.randrange(12)])
        else:
            actions.append(["generate", random.randint(1, 24)])
    return {
        "run_ahead": random.choice((None, None, 1, 4, 8)),
        "search": search,
        "actions": actions,
        "end": random.choice(("close", "close", "drop", "hurry")),
    }


def prompt_of(random: Random, most: int) -> list[int]:
    return [random.randrange(5, VOCABULARY) for _ in range(random.randint(1, most))]


def chat_of(seed: int, variant: int) -> dict[str, Any]:
    """A conversation: what the user says, the tokens of each answer at most, and which answer is cancelled after how
    many milliseconds, and asked for once more."""
    random = Random(f"soak {seed} chat {variant}")
    turns = [random.choice(WORDS) for _ in range(random.randint(1, 3))]
    cancelled = random.randrange(-1, len(turns))
    return {"turns": turns, "new": random.randint(4, 24), "cancelled": cancelled, "after": random.randrange(60)}


def oracle_actions(actions: Sequence[Sequence[Any]], lengths: Sequence[int]) -> list[tuple[str, Any]]:
    """The actions of a generator in the form of tests.oracle; `lengths` has the length after each rewind."""
    left = iter(lengths)
    found: list[tuple[str, Any]] = []
    for verb, argument, *_ in actions:
        found.append(("generate" if verb == "cancel" else verb, next(left) if verb == "rewind" else argument))
    return found
