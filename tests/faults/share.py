"""The cases of a class of attacks, and the part of them that one of several processes tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import TypeVar

__all__ = ["Share"]

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Part `part` of `parts` of the `count` cases that each class has from `seed`."""

    count: int
    seed: int
    part: int = 1
    parts: int = 1

    def times(self, factor: float) -> Share:
        """The same for a class with so many times the cases, one at least."""
        return replace(self, count=max(1, round(self.count * factor)))

    def cases(self, kind: str, make: Callable[[Random], T]) -> Iterator[T]:
        """The cases of a class in this part; all parts together are those of a run in one part."""
        random = Random(f"{kind} {self.seed}")
        return islice((make(random) for _ in range(self.count)), self.part - 1, None, self.parts)
