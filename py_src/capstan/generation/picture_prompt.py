"""Makes the pixel values of the pictures in a conversation, and the placeholders for them, for one model that sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ..device.picture_encoder import grid_features
from ..device.prefix_cache import Content
from ..device.speech_encoder import Features
from ..errors import ArgumentTypeError, PictureError, UnsupportedModelError
from ..picture.picture_file import Rgba
from ..picture.picture_places import BEGIN, GEMMA, IMAGE, VISION, Place, grid_place, text_with_places, tiles_place
from ..picture.picture_processor import PictureProcessor
from ..picture.tiled_processor import TiledProcessor

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["PicturePrompts"]


@dataclass(frozen=True)
class Prepared:
    """A picture as a model takes it."""

    features: Features
    place: Place


class PicturePrompts:
    """The processor of a model's pictures; it keeps the pixel values of the last ones."""

    def __init__(self, model: Model) -> None:
        name, about = model.config.processor, model.config.vision
        assert name is not None, "a model that sees has a token for pictures"
        assert about is not None, "the model sees"
        self._model, self._about, text = model, about, model.tokenizer_files[name]
        self._steps: PictureProcessor | TiledProcessor
        if about.places:
            self._mark, self._steps = IMAGE, TiledProcessor.of_config(text, name)
        else:
            self._mark, self._steps = VISION if about.grid else BEGIN, PictureProcessor.of_config(text, name)
        self._known: dict[str, Prepared] = {}

    @property
    def placeholder(self) -> int:
        """The id of the token that stands for a row of features."""
        found: int = self._encoder.placeholder
        return found

    def prepared(self, pictures: Sequence[Any]) -> list[Prepared]:
        """Prepare pictures; each is the content of a file, or an Rgba. Raises PictureError, ArgumentTypeError."""
        keys = [key_of(each) for each in pictures]
        made: dict[str, Prepared] = {}
        for place, (key, picture) in enumerate(zip(keys, pictures, strict=True)):
            if key not in made:
                made[key] = self._known.get(key) or self._made(picture, f"picture {place}")
        self._known = made
        return [made[key] for key in keys]

    def pixels(self, pictures: Sequence[bytes | Rgba], names: Sequence[str]) -> tuple[Any, Place]:
        """The pixel values of pictures of one size in the encoder's layout, and the place of each; `names` are their
        names in messages. Raises PictureError.
        """
        if isinstance(self._steps, TiledProcessor):
            [picture], [name] = pictures, names
            tiles, rows, columns = self._steps.tiles(picture, name)
            values, place = tiles[np.newaxis], tiles_place(rows, columns, self._about.places)
        else:
            values, place = self._steps.pixels(pictures, names), GEMMA
        return values.astype(self._encoder.dtype), place

    def patches(self, picture: bytes | Rgba, name: str) -> Prepared:
        """A picture of any size as patches, whose grid the encoder takes. Raises PictureError."""
        assert isinstance(self._steps, PictureProcessor), "tiles have no grid"
        [values] = self._steps.pixels([picture], [name])
        *grid, width = values.shape
        if len(grid) != 3:
            raise UnsupportedModelError(f"{self._model.config.processor}: its steps make no patches; add PatchImage")
        data = values.astype(self._encoder.dtype).tobytes()
        features = grid_features(self._encoder.dtype, width, data, grid)
        return Prepared(features, grid_place(grid, self._about.merge))

    def expanded(self, text: str, places: Sequence[Place]) -> str:
        """The text of a prompt, with the placeholders of pictures. Raises PictureError."""
        return text_with_places(text, self._mark, places)

    def contents(self, ids: Sequence[int], pictures: Sequence[Prepared]) -> tuple[Content, ...]:
        """The ranges of a prompt's tokens that stand for the pictures. Raises PictureError."""
        places = [place for place, token in enumerate(ids) if token == self.placeholder]
        counts = [each.place.count for each in pictures]
        if len(places) != sum(counts):
            raise PictureError(
                f"the prompt has {len(places)} placeholders; its pictures take {sum(counts)}: leave the placeholder's "
                "text out of messages"
            )
        ends = list(accumulate(counts))
        ranges = zip((0, *ends), ends, pictures, strict=False)
        return tuple(Content(places[start], places[end - 1] + 1, each.features.digest) for start, end, each in ranges)

    @property
    def _encoder(self) -> Any:
        encoder = self._model.picture_encoder
        assert encoder is not None, "the model sees"
        return encoder

    def _made(self, picture: Any, name: str) -> Prepared:
        if self._about.grid:
            return self.patches(picture, name)
        values, place = self.pixels([picture], [name])
        data = values.tobytes()
        return Prepared(Features(str(values.dtype), values.shape, data, sha256(data).hexdigest()), place)


def key_of(picture: Any) -> str:
    if isinstance(picture, Rgba):
        return f"{picture.width} {sha256(picture.data).hexdigest()}"
    if isinstance(picture, bytes | bytearray | memoryview):
        return sha256(picture).hexdigest()
    raise ArgumentTypeError(f"a picture is of type {type(picture).__name__}; give the content of a file as bytes")
