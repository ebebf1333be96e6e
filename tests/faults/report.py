"""The outcome of attacks: counts by class, and the failures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capstan.errors import CapstanError

__all__ = ["DEADLINE_SECONDS", "HEAD", "Failure", "Outcome", "attack", "fault_of", "fault_of_error"]

FOUND = Path(__file__).parents[2] / "build/faults"
MOST_CHARACTERS = 2000
"""The longest message of an error."""
DEADLINE_SECONDS = 20.0
"""For one case. Most take milliseconds; a loaded machine is given time."""
HEAD = f"{'class':<20}{'cases':>7}{'taken':>7}{'refused':>9}{'failed':>8}{'seconds':>9}"


@dataclass(frozen=True)
class Failure:
    """A case that was not survived."""

    kind: str
    case: bytes
    why: str

    def line(self) -> str:
        """A line about it, with the file that the case is written to; once mended the case belongs into the corpus."""
        place = FOUND / self.kind / hashlib.sha256(self.case).hexdigest()[:12]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(self.case)
        return f"{self.kind}: {self.why} ({place})"


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
        """The row below HEAD."""
        counts = f"{self.tried:>7}{self.taken:>7}{self.refused:>9}{len(self.failures):>8}"
        return f"{self.kind:<20}{counts}{self.seconds:>9.0f}"

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
    other exception a fault, and so is one that waits too long."""
    limit = asyncio.timeout(DEADLINE_SECONDS)
    try:
        async with limit:
            await target(case)
    except Exception as error:
        if limit.expired():
            outcome.fail(case, f"no end within {DEADLINE_SECONDS:g} s")
        elif why := fault_of_error(error):
            outcome.fail(case, why)
        else:
            outcome.refused += 1
    else:
        outcome.taken += 1


def fault_of_error(error: Exception) -> str | None:
    """The fault of what a case raised; None for an error of ours."""
    if isinstance(error, CapstanError):
        return fault_of(str(error))
    if isinstance(error, AssertionError):
        return f"wrong: {error}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:200]} at {where.filename[-40:]}:{where.lineno}"


def fault_of(message: str) -> str | None:
    """The fault of an error's message; None if it has none."""
    if len(message) > MOST_CHARACTERS:
        return f"a message of {len(message)} characters: {message[:200]}"
    if "\n" in message:
        return f"a message of several lines: {message[:200]!r}"
    return None
