"""Measures the phases of a load: the start and end of each phase, in milliseconds since the load was requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from .spans import span

__all__ = ["LoadTimes", "during_load", "phase"]


class LoadTimes:
    """The phases of one load, in the order in which they ended; independent phases overlap."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._start = now()
        self.phases: dict[str, tuple[float, float]] = {}
        self._at_begin: dict[str, Callable[[], None]] = {}

    def at_begin(self, name: str, function: Callable[[], None]) -> None:
        """Call a function when the phase first begins."""
        self._at_begin[name] = function

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measure a phase. If a phase has several parts, it lasts from the start of the first to the end of the
        last.
        """
        begun = self._now() - self._start
        self._at_begin.pop(name, nothing)()
        try:
            yield
        finally:
            first, last = self.phases.pop(name, (begun, begun))
            self.phases[name] = min(first, begun), max(last, self._now() - self._start)


def nothing() -> None:
    """Does nothing."""


current: ContextVar[LoadTimes | None] = ContextVar("capstan load times", default=None)
"""The times of the running task's load."""


@contextmanager
def during_load(now: Callable[[], float]) -> Iterator[LoadTimes]:
    """Everything inside the block belongs to one load, including tasks that begin there."""
    times = LoadTimes(now)
    token = current.set(times)
    try:
        yield times
    finally:
        current.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Measure a phase of the load under way. Outside of a load only a trace records the phase."""
    times = current.get()
    with span(name, "load"), nullcontext() if times is None else times.of(name):
        yield
