"""Spans of time that are kept while a trace is taken (capstan.trace); else noting one costs a look at a variable."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ..errors import OptionError

__all__ = ["HostSpans", "Span", "Spans", "begin", "end", "note", "span", "spanned"]

P = ParamSpec("P")
T = TypeVar("T")

MOST = 100_000
"""Most spans of a trace: one more is counted as dropped."""


@dataclass(frozen=True)
class Span:
    """A part of the time, in milliseconds on the host's clock."""

    track: str
    """'load', 'Python', 'submit', 'wait', 'copy' or 'GPU'."""
    name: str
    begin: float
    end: float
    given: dict[str, Any] = field(default_factory=dict)


@dataclass
class Spans:
    """The spans of the trace that is taken."""

    now: Callable[[], float]
    most: int = MOST
    kept: list[Span] = field(default_factory=list)
    dropped: int = 0

    def add(self, span: Span) -> None:
        """Keep it, or count it if there are too many."""
        if len(self.kept) < self.most:
            self.kept.append(span)
        else:
            self.dropped += 1


@dataclass(frozen=True)
class HostSpans:
    """The spans that the host noted besides Python."""

    spans: list[Span]
    dropped: int
    """Spans that were too many."""
    origin: float
    """The zero of the host's clock, in milliseconds since 1970."""
    no_gpu_times: str
    """Why there are no times of the GPU; empty if there are some."""
    unusable: int = 0
    """Submits whose times of the GPU made no sense."""
    about: dict[str, Any] = field(default_factory=dict)
    """The device and the versions."""


_taken: Spans | None = None


def begin(now: Callable[[], float]) -> None:
    """Keep spans from now on. Raises OptionError if they are kept already."""
    global _taken
    if _taken is not None:
        raise OptionError(
            "a trace is being taken already, and there is one at a time: end it before another one begins"
        )
    _taken = Spans(now)


def end() -> Spans:
    """The spans that were kept; none is kept any more. Raises OptionError without a trace."""
    global _taken
    if _taken is None:
        raise OptionError(
            "no trace is being taken: begin one with `async with capstan.trace()`, `llm.trace.start()` or the option "
            "`trace: true` of Capstan.load"
        )
    ended, _taken = _taken, None
    return ended


def note(track: str, name: str, begun: float, ended: float) -> None:
    """Keep a span whose times are known."""
    if _taken is not None:
        _taken.add(Span(track, name, begun, ended))


@contextmanager
def span(name: str, track: str = "Python", **given: Any) -> Iterator[None]:
    """Keep a span from the begin of the block to its end."""
    spans = _taken
    if spans is None:
        yield
        return
    begun = spans.now()
    try:
        yield
    finally:
        spans.add(Span(track, name, begun, spans.now(), given))


def spanned(name: str) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Each call of a coroutine function is a span of Python's."""

    def wrap(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await function(*args, **kwargs)

        return call

    return wrap
