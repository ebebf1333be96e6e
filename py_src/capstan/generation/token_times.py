"""Measures the times of a generator's tokens, and the shares of the device, the host and Python in these times."""

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
    """The time when JavaScript began to encode it."""
    submitted: float
    done: float
    """The time when the device had computed it."""
    readable: float
    """The time when its ids were copied and readable."""
    entered: float
    """The time when Python received the ids."""
    picks: int
    """The number of its decode steps."""


@dataclass
class Timing:
    """Times are milliseconds on the worker's clock; None until the event."""

    started: float | None = None
    """The time when the first token was requested."""
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    host_ms: float = 0.0
    """JavaScript's time to encode and submit the bursts that were read. Without a tape it includes onnxruntime-web's
    waits for the GPU.
    """
    python_ms: float = 0.0
    """Python's time from receiving a burst's ids to the wait for the next burst: the decode loop and the caller's code
    between tokens, without `host_ms`.
    """
    waiting_ms: float = 0.0
    """The device's time for the bursts that were read: from a burst's submit, or from the end of the burst before it,
    until the device had computed it."""
    copying_ms: float = 0.0
    """The time from the end of each burst until its ids were readable."""
    bursts: list[BurstTimes] | None = None
    """The times of each burst that was read; kept only if a list is given."""
    _since: float | None = None
    """The time when Python received the ids that it is processing."""
    _first: float | None = None
    """The same for the first burst since `pause`."""
    _waiting: float = 0.0
    """The time when the wait for the last burst began."""
    _done: float = 0.0
    """The time when the device had computed the last burst."""

    @property
    def time_to_first_token(self) -> float | None:
        """Milliseconds of the prefill, the first pick and its readback; the first time including the recording of a
        tape.
        """
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
        """Note that Python begins to wait for a burst."""
        if self._since is not None:
            self.python_ms += now - self._since
            note("Python", "between bursts", self._since, now)
        self._since = None
        self._waiting = now

    def receive(self, burst: Burst) -> None:
        """Note that the awaited burst has arrived."""
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
            # The burst was submitted while Python ran, so Python's time includes this.
            self.python_ms -= burst.host

    def pause(self) -> None:
        """Note that the time until the next step is not part of the decode steps."""
        self._since = self._first = None
