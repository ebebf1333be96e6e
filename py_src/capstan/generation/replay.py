"""Recovers facts about a sequence that generators do not keep, by running it once more."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.carried_tensor import CarriedTensor
from ..device.row_interface import HearingRow, RowDecoder

if TYPE_CHECKING:
    from ..device.speech_encoder import Features
    from ..model import Model

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Runs sequences of up to `max_length` tokens over a KV cache of their own, which is given back afterwards. Raises
    OutOfMemoryError where there is no memory for it."""

    model: Model
    max_length: int
    sound: Features | None = None
    """The sound that the sequence hears."""

    async def logits(self, tokens: Sequence[int], first: int) -> array[float]:
        """The logits at each position from `first` on, float32 [positions, vocab]: a run of the model for each."""
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
        decoder, encoder = await self.model.decoder(self.max_length), self.model.speech_encoder
        row = decoder.row(0)
        if encoder is not None and self.sound is not None and isinstance(row, HearingRow):
            try:
                async with encoder.heard(self.sound) as heard:
                    row.hear(heard)
            except BaseException:
                await decoder.close()
                raise
        return decoder
