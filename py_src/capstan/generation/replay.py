"""Recovers facts about a sequence that generators do not keep, by running it once more."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.carried_tensor import CarriedTensor
from ..device.row_interface import DecoderRow, RowDecoder

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Runs sequences of up to `max_length` tokens over a separate KV cache, which is released afterwards. Raises
    OutOfMemoryError if there is no memory for it.
    """

    model: Model
    max_length: int
    give: Callable[[DecoderRow], Awaitable[None]]
    """Gives a row the sound or the pictures of the sequence."""

    async def logits(self, tokens: Sequence[int], first: int) -> array[float]:
        """The logits at each position from `first` on, float32 [positions, vocab], with one run of the model for
        each.
        """
        found = array("f")
        decoder = await self._decoder()
        try:
            if first:
                await decoder.row(0).prefill(tokens[:first], 0)
            for position in range(first, len(tokens)):
                await decoder.row(0).prefill(tokens[position : position + 1], position)
                found.extend(await decoder.row(0).logits())
        finally:
            await decoder.close()
        return found

    async def carried(self, tokens: Sequence[int], name: str) -> CarriedTensor:
        """A cache or state after the tokens. OptionError if the graph has none of that name."""
        decoder = await self._decoder()
        try:
            if tokens:
                await decoder.row(0).prefill(tokens, 0)
            return await decoder.row(0).carried(name)
        finally:
            await decoder.close()

    async def _decoder(self) -> RowDecoder:
        decoder = await self.model.decoder(self.max_length)
        try:
            await self.give(decoder.row(0))
        except BaseException:
            await decoder.close()
            raise
        return decoder
