"""Gives the pictures in the prompt to a generator's sequences, for models with a vision graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ..device.cache_rows import PictureSpan
from ..device.prefix_cache import Content
from ..device.row_interface import DecoderRow, RowDecoder, SeeingRow
from ..errors import PictureError
from ..host.spans import span
from .row import Row

if TYPE_CHECKING:
    from ..device.speech_encoder import Features
    from ..model import Model

__all__ = ["Seeing"]


class Seeing:
    """The pictures of a prompt, and the decoder that holds their features. Each placeholder token of the prompt takes
    the next row of features. A placeholder token that the model generates is an ordinary token.
    """

    def __init__(self) -> None:
        self.pictures: tuple[Features, ...] = ()
        self._placed: tuple[RowDecoder, list[int]] | None = None
        """The decoder that has the features, and the positions of the placeholders."""
        self._contents: tuple[Content, ...] = ()

    def give(self, pictures: Sequence[Features]) -> None:
        """Set the pictures of the sequence."""
        self.pictures, self._placed = tuple(pictures), None

    def require(self, model: Model, decoder: RowDecoder | None) -> None:
        """Raises nothing: a prompt may have no picture."""

    async def encode(
        self, model: Model, decoder: RowDecoder, rows: Sequence[Row], copies: int, require_open: Callable[[], None]
    ) -> None:
        """Run the vision graph on each picture, once for a decoder. With pictures all rows have the same prompt;
        `require_open` raises if the generator was closed meanwhile. Raises PictureError if the pictures do not fit the
        prompt.
        """
        encoder = model.picture_encoder
        if encoder is None:
            return
        for row in rows:
            places = placeholders(row, encoder.placeholder)
            if places and not self.pictures:
                raise self._unfit(len(places), "no picture was given")
        if self._placed != (decoder, places):
            await decoder.rest()
            listeners = [decoder.row(number) for number in range(len(rows))]
            self._contents = await self._place(model, listeners, places, require_open)
            self._placed = decoder, places
        for row in rows:
            # Cache rows that were computed with another picture are computed again.
            for each in {*row.contents} ^ {*self._contents}:
                row.unsettle(each.start)
            row.contents = self._contents

    async def give_to(self, model: Model, prompt: int, listener: DecoderRow) -> None:
        """Give the features to a row of another decoder that will run the same tokens."""
        if self.pictures and self._placed is not None:
            await self._place(model, [listener], self._placed[1], lambda: None)

    async def _place(
        self, model: Model, listeners: Sequence[DecoderRow], places: Sequence[int], require_open: Callable[[], None]
    ) -> tuple[Content, ...]:
        """Place the features at these positions of the rows; without features there are none. Returns the pictures'
        ranges of tokens.
        """
        encoder = model.picture_encoder
        assert encoder is not None, "a model with pictures has an encoder"
        seers = [listener for listener in listeners if isinstance(listener, SeeingRow)]
        assert len(seers) == len(listeners), "every device that has vision graphs has such rows"
        if not self.pictures:
            for seer in seers:
                seer.see(None, ())
            return ()
        with span("run the vision graph"):
            async with encoder.seen(self.pictures) as (features, counts):
                require_open()
                if sum(counts) != len(places):
                    many = "picture takes" if len(counts) == 1 else f"{len(counts)} pictures take"
                    raise self._unfit(len(places), f"its {many} {sum(counts)}")
                spans = self._spans(encoder.merge, places, counts)
                table = [-1] * (places[-1] + 1 if places else 0)
                for number, place in enumerate(places):
                    table[place] = number
                for seer in seers:
                    seer.see(features, table, spans)
        ends = list(accumulate(counts))
        ranges = zip((0, *ends), ends, self.pictures, strict=False)
        return tuple(Content(places[start], places[end - 1] + 1, each.digest) for start, end, each in ranges)

    def _spans(self, merge: int, places: Sequence[int], counts: Sequence[int]) -> list[PictureSpan]:
        """The places of the pictures that have rows and columns. Raises PictureError if the placeholders of a picture
        are not adjacent.
        """
        found = []
        for each, count, end in zip(self.pictures, counts, accumulate(counts), strict=True):
            start = places[end - count]
            if each.grid and places[end - 1] - start >= count:
                raise self._unfit(len(places), "other tokens are between those of one picture")
            if each.grid:
                found.append(PictureSpan(start, each.grid[1] // merge, each.grid[2] // merge))
        return found

    def _unfit(self, count: int, why: str) -> PictureError:
        return PictureError(
            f"the prompt has {count} placeholders of pictures, and {why}; give both as the model's processor makes them"
        )


def placeholders(row: Row, token: int) -> list[int]:
    """The positions of a token in the prompts of a row."""
    return [place for start, end in row.appended for place in range(start, end) if row.tokens[place] == token]
