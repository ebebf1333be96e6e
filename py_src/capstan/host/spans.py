"""Keeps spans of time during a trace (capstan.trace). Without a trace, noting a span only reads a variable."""

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
"""The most spans of a trace; further ones are counted as dropped."""


@dataclass(frozen=True)
class Span:
    """An interval of time, in milliseconds on the host's clock."""

    track: str
    """'load', 'Python', 'submit', 'wait', 'copy' or 'GPU'."""
    name: str
    begin: float
    end: float
    given: dict[str, Any] = field(default_factory=dict)


@dataclass
class Spans:
    """The spans of the present trace."""

    now: Callable[[], float]
    most: int = MOST
    kept: list[Span] = field(default_factory=list)
    dropped: int = 0

    def add(self, span: Span) -> None:
        """Keep a span. If there are too many spans, only count it."""
        if len(self.kept) < self.most:
            self.kept.append(span)
        else:
            self.dropped += 1


@dataclass(frozen=True)
class HostSpans:
    """Holds the spans that the host recorded outside of Python."""

    spans: list[Span]
    dropped: int
    """The number of dropped spans."""
    origin: float
    """The zero of the host's clock, in milliseconds since 1970."""
    no_gpu_times: str
    """The reason why there are no times of the GPU; empty if there are some."""
    unusable: int = 0
    """The number of submits whose GPU times were impossible."""
    about: dict[str, Any] = field(default_factory=dict)
    """The device and the versions."""


_taken: Spans | None = None


def begin(now: Callable[[], float]) -> None:
    """Keep spans from now on. Raises OptionError if spans are kept already."""
    global _taken
    if _taken is not None:
        raise OptionError("a trace is already under way: end it before the next one begins")
    _taken = Spans(now)


def end() -> Spans:
    """End the trace, and return its spans. Raises OptionError without a trace."""
    global _taken
    if _taken is None:
        raise OptionError(
            "no trace is under way: begin one with `async with capstan.trace()`, `llm.trace.start()` or the option "
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
    """Keep a span from the start of the block to its end."""
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
    """Make each call of a coroutine function a span of Python."""

    def wrap(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await function(*args, **kwargs)

        return call

    return wrap
