"""The outcome of attacks: counts by class, and the failures."""

from __future__ import annotations

import base64
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from capstan.errors import CapstanError

__all__ = ["DEADLINE_SECONDS", "Failure", "Outcome", "attack"]

MOST_CHARACTERS = 2000
"""The longest message of an error."""
DEADLINE_SECONDS = 20.0
"""For one case. Most take milliseconds; a loaded machine is given time."""


@dataclass(frozen=True)
class Failure:
    """A case that was not survived."""

    kind: str
    case: bytes
    why: str


@dataclass
class Outcome:
    """The cases of one class: `refused` ones ended in an error of ours, `taken` ones were good enough."""

    kind: str
    refused: int = 0
    taken: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return self.refused + self.taken + len(self.failures)

    def fail(self, case: bytes, why: str) -> None:
        self.failures.append(Failure(self.kind, case, why))

    def add(self, other: Outcome) -> None:
        """Count what another process tried of the class, too."""
        self.refused += other.refused
        self.taken += other.taken
        self.failures += other.failures
        self.seconds += other.seconds

    def line(self) -> str:
        survived = self.refused + self.taken
        return f"{self.kind:<20}{self.tried:>7}{survived:>10}{len(self.failures):>8}{self.seconds:>9.0f}"

    def as_json(self) -> dict[str, Any]:
        """The form that `read` takes."""
        failures = [[base64.b64encode(failure.case).decode(), failure.why] for failure in self.failures]
        return {**vars(self), "failures": failures}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Outcome:
        """An outcome of another process, or of Python in a page."""
        failures = [Failure(told["kind"], base64.b64decode(case), why) for case, why in told["failures"]]
        return cls(**{**told, "failures": failures})


async def attack(outcome: Outcome, case: bytes, target: Callable[[bytes], Awaitable[None]]) -> None:
    """Try one case: an error of ours with a short message is what is wanted, AssertionError is a wrong acceptance, any
    other exception a fault."""
    begun = time.monotonic()
    try:
        await target(case)
    except CapstanError as error:
        why = fault_of(str(error))
        if why:
            outcome.fail(case, why)
            return
        outcome.refused += 1
    except AssertionError as error:
        outcome.fail(case, f"wrong: {error}")
        return
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.fail(case, f"{type(error).__name__}: {str(error)[:200]} at {where.filename[-40:]}:{where.lineno}")
        return
    else:
        outcome.taken += 1
    if time.monotonic() - begun > DEADLINE_SECONDS:
        outcome.fail(case, f"{time.monotonic() - begun:.1f} s")


def fault_of(message: str) -> str | None:
    """The fault of an error's message; None if it has none."""
    if len(message) > MOST_CHARACTERS:
        return f"a message of {len(message)} characters: {message[:200]}"
    if "\n" in message:
        return f"a message of several lines: {message[:200]!r}"
    return None
