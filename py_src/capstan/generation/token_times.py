"""The times of a generator's tokens, and the parts of the device, the host and Python in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..host.spans import note

if TYPE_CHECKING:
    from ..device.row_interface import Burst

__all__ = ["BurstTimes", "Timing"]


@dataclass(frozen=True)
class BurstTimes:
    """The times of one submit, in milliseconds on the worker's clock."""

    encoded: float
    """When JavaScript began to encode it."""
    submitted: float
    done: float
    """When the device had computed it."""
    readable: float
    """When its ids had been copied and could be read."""
    entered: float
    """When Python got the ids."""
    picks: int
    """Decode steps of it."""


@dataclass
class Timing:
    """Milliseconds on the worker's clock; None until it happened."""

    started: float | None = None
    """The time at which the first token was requested."""
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    host_ms: float = 0.0
    """JavaScript's time to encode and submit the bursts that were read. Without a tape onnxruntime-web's waits for the
    GPU are in it."""
    python_ms: float = 0.0
    """Python's time from being given a burst's ids to the wait for the next burst: the decode loop and the caller's
    code between tokens, without what is in `host_ms`."""
    waiting_ms: float = 0.0
    """The device's time for the bursts that were read: from a burst's submit, or from the end of the burst before it,
    until the device had computed it."""
    copying_ms: float = 0.0
    """The time from there until the ids of each burst could be read."""
    bursts: list[BurstTimes] | None = None
    """The times of each burst that was read, if a list is given."""
    _since: float | None = None
    """The time at which Python received the ids that it is processing."""
    _first: float | None = None
    """The same of the first burst since `pause`."""
    _waiting: float = 0.0
    """When the wait for the last one began."""
    _done: float = 0.0
    """When the device had computed the last one."""

    @property
    def time_to_first_token(self) -> float | None:
        """Prefill, the first pick and its readback, in milliseconds; recording a tape is part of it the first time."""
        if self.started is None or self.first_token is None:
            return None
        return self.first_token - self.started

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second between the first and the last."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return None
        elapsed = self.last_token - self.first_token
        return 1000.0 * (self.tokens - 1) / elapsed if elapsed > 0 else None

    def wait(self, now: float) -> None:
        """Python begins to wait for a burst."""
        if self._since is not None:
            self.python_ms += now - self._since
            note("Python", "between bursts", self._since, now)
        self._since = None
        self._waiting = now

    def receive(self, burst: Burst) -> None:
        """Note that the awaited burst is there."""
        self.host_ms += burst.host
        self.waiting_ms += max(0.0, burst.done - max(burst.submitted, self._done))
        self.copying_ms += burst.readable - burst.done
        self._done = burst.done
        if self.bursts is not None:
            begun = burst.submitted - burst.host
            stamps = burst.submitted, burst.done, burst.readable, burst.entered
            self.bursts.append(BurstTimes(begun, *stamps, burst.picks))
        self._since = burst.entered
        if self._first is None:
            self._first = self._since
        elif self._first <= burst.submitted <= self._waiting:
            # It was submitted while Python ran, which that time holds too.
            self.python_ms -= burst.host

    def pause(self) -> None:
        """Note that the time until the next step is not part of the decode steps."""
        self._since = self._first = None
