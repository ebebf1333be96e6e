"""Limits the tokens of a prefill run by the measured time of earlier runs."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ...errors import CapstanError
from ...host import current_host
from .gpu_engine import GpuEngine
from .prefill_chunk import SHORTEST

__all__ = ["FIRST", "PrefillPace", "RunSize"]

FIRST = 256
"""Tokens of the first run on an unknown GPU adapter: on a slow one, a long run would hold up the page."""

STRIKES = 2
"""The number of successive runs over the bound that makes runs shorter: the first run of a size also compiles its
kernels.
"""

RETURNS = 2
"""The number of times that a size may be found too long. After these it is not tried again, so that the size settles.
"""


class RunSize:
    """Chooses the tokens of prefill runs: powers of two times `least`, so that tapes of earlier sizes serve again.

    If a run takes more than `bound` milliseconds, the size is halved, down to `least`. It is doubled, up to `most`,
    while a run of twice the tokens is expected to stay within the bound. When it is neither halved nor doubled, it is
    `settled` and stays, so that equal prompts are cut in the same way and give equal tokens. Without a bound it is
    `most` from the start.
    """

    def __init__(self, most: int, bound: float, settled: int | None = None, least: int = SHORTEST) -> None:
        self._most = most
        self._least = min(least, most)
        self._bound = bound
        self._over = 0
        self._left: Counter[int] = Counter()
        """The number of times that each size was found too long."""
        start = most if math.isinf(bound) else min(FIRST, most)
        self.size = settled or start
        self.settled = settled is not None or math.isinf(bound) or self._least == most

    def observe(self, tokens: int, milliseconds: float) -> None:
        """Learn from the time of a run of `tokens` tokens."""
        if self.settled or tokens <= self._least:
            return
        long_enough = 2 * tokens >= self.size
        expected = milliseconds * self.size / tokens if long_enough else milliseconds
        if expected > self._bound:
            self._over += 1
            if self._over == STRIKES:
                self._halve(tokens)
            return
        self._over = 0
        if not long_enough:
            return
        if self.size == self._most or 2 * expected > self._bound or self._left[2 * self.size] == RETURNS:
            self.settled = True
        else:
            self.size *= 2

    def _halve(self, tokens: int) -> None:
        """Make runs shorter than `tokens` tokens."""
        self._over = 0
        self._left[self.size] += 1
        self.size //= 2
        while self.size >= tokens:
            self.size //= 2
        self.size = max(self.size, self._least)
        self.settled = self.size == self._least


class PrefillPace:
    """The size of a model's prefill runs, learned from their times. Until it is settled, each run waits for the time of
    the run before it.
    """

    def __init__(self, engine: GpuEngine, size: RunSize, keep: Callable[[int], Awaitable[None]]) -> None:
        """`keep` remembers a size that has settled."""
        self._engine = engine
        self._size = size
        self._keep = keep
        self._measuring: set[asyncio.Task[None]] = set()
        self._last_done = -math.inf
        self._kept = size.settled

    @property
    def size(self) -> int:
        """The most tokens of the next run."""
        return self._size.size

    @property
    def settled(self) -> bool:
        return self._size.settled

    async def known(self) -> None:
        """Wait for the times of the runs so far."""
        if self._measuring:
            await asyncio.wait(self._measuring)
        if self.settled and not self._kept:
            self._kept = True
            await self._keep(self.size)

    def measure(self, tokens: int, begun: float) -> None:
        """Measure a queued run. It began at `begun` on the worker's clock, or when the previous run ended, if that was
        later.
        """
        if not self.settled:
            task = asyncio.ensure_future(self._time(tokens, begun))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)

    def now(self) -> float:
        """Milliseconds on the worker's clock."""
        return current_host().now()

    async def _time(self, tokens: int, begun: float) -> None:
        # The next run raises the device's fault.
        with suppress(CapstanError):
            done = await self._engine.work_done()
            since, self._last_done = max(begun, self._last_done), done
            self._size.observe(tokens, done - since)
