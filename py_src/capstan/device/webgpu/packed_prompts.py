"""Computes prompts of joint rows in runs of a fixed number of tokens, which may belong to any rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ...fallback import fall_back
from .gpu_engine import GpuEngine
from .gpu_waits import to_its_end
from .row_buffers import RowBuffers
from .tapes.pack_tapes import PackBuffers, Placed
from .tapes.row_tapes import RowTape
from .tapes.tape_scratch import TapeScratch

__all__ = ["LONGEST", "TOGETHER", "PackedPrompts", "run_length"]

TOGETHER = "prompts of several rows in the same runs"
"""The name of these runs in warnings about fallbacks."""

LONGEST = 128
"""The most tokens of a prompt that shares runs. With a 1B model on an NVIDIA H100 a run of 32 tokens takes 1.9
ms; a prompt alone takes 9 to 11 ms up to some 150 tokens, and each later token less than a token of such a run."""

TOKENS = {False: 32, True: 8}
"""Tokens of a run, by whether the adapter is software: products read weights once for up to 32 rows."""


def run_length(software: bool) -> int:
    """The number of tokens in a run."""
    return TOKENS[software]


class PackedPrompts:
    """Owns the tape of runs over tokens of any rows. `make(now)` returns the tape, or the reason why there is none; if
    it need not record `now`, it may return None, to be called again later. Without `make` all prompts run one after
    another.
    """

    def __init__(
        self,
        engine: GpuEngine,
        buffers: RowBuffers,
        scratch: TapeScratch,
        make: Callable[[bool], Awaitable[RowTape[PackBuffers] | str | None]] | None,
    ) -> None:
        self._engine = engine
        self._buffers = buffers
        self._scratch = scratch
        self._make = make
        self._made: RowTape[PackBuffers] | str | None = None
        self._preparing: asyncio.Future[None] | None = None
        self._runs = self._tokens = 0

    @property
    def report(self) -> dict[str, str]:
        """See RowDecoder.tape_passes."""
        if self._make is None:
            return {}
        if self._made is None:
            given = self._scratch.given is not None
            why = (
                "the given scratch may be too small" if given else "the device was not unused since their first prompts"
            )
            return {"prompts": f"no tape was recorded yet: {why}"}
        if isinstance(self._made, str):
            return {"prompts": f"run one after another: {self._made}"}
        done = f"{self._runs} runs had {self._tokens} tokens of prompts"
        return {"prompts": f"{self._made.report}; {done}"}

    async def ready(self, now: bool = False) -> bool:
        """Whether there is a tape; makes one `now`, or as soon as it pays off."""
        if self._make is not None and self._made is None:
            self._preparing = asyncio.ensure_future(self._prepare(now))
            await to_its_end(self._preparing)
        return isinstance(self._made, RowTape)

    async def _prepare(self, now: bool) -> None:
        self._made = made = None if self._make is None else await self._make(now)
        if isinstance(made, str):
            fall_back(TOGETHER, made, "they are run one after another")

    def run(self, tokens: Sequence[Placed]) -> None:
        """Queue runs of these tokens, which fill the caches; the tokens of each row are in order."""
        assert isinstance(self._made, RowTape)
        pack = self._made.buffers
        for start in range(0, len(tokens), pack.tokens):
            part = tokens[start : start + pack.tokens]
            pack.write(self._buffers, part)
            self._engine.play_once(self._made.tape, max(token.length for token in part))
            self._runs += 1
        self._tokens += len(tokens)

    async def release(self) -> None:
        """Free the tape."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        made, self._made = self._made, None
        if isinstance(made, RowTape):
            await made.release()
