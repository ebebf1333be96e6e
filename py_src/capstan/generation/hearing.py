"""Encodes the sounds that the sequences of a generator hear, in a model with an encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..device.prefix_cache import Content
from ..device.row_interface import DecoderRow, HearingRow, RowDecoder
from ..errors import PromptError
from ..host.spans import span
from .row import Row

if TYPE_CHECKING:
    from ..device.speech_encoder import Features
    from ..model import Model

__all__ = ["Hearing"]


class Hearing:
    """The sound of each prompt, and the decoder that has the encoder's outputs for them."""

    def __init__(self) -> None:
        self.sounds: tuple[Features, ...] = ()
        self._decoder: RowDecoder | None = None

    def give(self, sounds: Sequence[Features]) -> None:
        """Set the sounds that the next tokens follow."""
        self.sounds, self._decoder = tuple(sounds), None

    def require(self, model: Model, decoder: RowDecoder | None) -> None:
        """Raise PromptError if the model has an encoder and this decoder has none of its outputs."""
        if model.speech_encoder is not None and self._decoder is not decoder:
            raise PromptError(
                f"a model of type {model.type!r} needs a sound: give one with capstan.genai.Generator.set_inputs "
                "before the tokens"
            )

    async def give_to(self, model: Model, prompt: int, listener: DecoderRow) -> None:
        """Give the sound of a prompt to a row of another decoder that will run the same tokens."""
        if self.sounds:
            await self._hear(model, self.sounds[prompt], [listener], lambda: None)

    async def encode(
        self, model: Model, decoder: RowDecoder, rows: Sequence[Row], copies: int, require_open: Callable[[], None]
    ) -> None:
        """Run the encoder on each sound, once for a decoder. Each prompt has `copies` successive rows; `require_open`
        raises if the generator was closed meanwhile.
        """
        if not self.sounds:
            return
        for number, row in enumerate(rows):
            # Caches depend on the sound from the first token on.
            row.contents = (Content(0, 1, self.sounds[number // copies].digest),)
        if self._decoder is decoder:
            return
        await decoder.rest()
        for place, sound in enumerate(self.sounds):
            listeners = [decoder.row(number) for number in range(place * copies, (place + 1) * copies)]
            await self._hear(model, sound, listeners, require_open)
        self._decoder = decoder

    async def _hear(
        self, model: Model, sound: Features, listeners: Sequence[DecoderRow], require_open: Callable[[], None]
    ) -> None:
        """Run the encoder on a sound, and give its outputs to these rows."""
        encoder = model.speech_encoder
        assert encoder is not None, "a model with sounds has an encoder"
        with span("run the encoder"):
            async with encoder.heard(sound) as heard:
                require_open()
                for listener in listeners:
                    assert isinstance(listener, HearingRow), "every device that has encoders has such rows"
                    listener.hear(heard)
