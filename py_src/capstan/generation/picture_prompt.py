"""Pixel values of the pictures in a conversation, and the places that stand for them, for one model that sees."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..device.prefix_cache import Content
from ..device.speech_encoder import Features
from ..errors import ArgumentTypeError, PictureError
from ..picture.picture_file import Rgba
from ..picture.picture_places import PLACES, with_places
from ..picture.picture_processor import PictureProcessor

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["PicturePrompts"]


class PicturePrompts:
    """The processor of a model's pictures, which keeps the pixel values of those that it made last."""

    def __init__(self, model: Model) -> None:
        name = model.config.processor
        assert name is not None, "a model that sees has one"
        self._model = model
        self._steps = PictureProcessor.of_config(model.tokenizer_files[name], name)
        self._known: dict[str, Features] = {}

    def features(self, pictures: Sequence[Any]) -> tuple[Features, ...]:
        """The pixel values of each picture: the content of a file, or Rgba. Raises PictureError, ArgumentTypeError."""
        keys = [key_of(each) for each in pictures]
        made: dict[str, Features] = {}
        for place, (key, picture) in enumerate(zip(keys, pictures, strict=True)):
            if key not in made:
                made[key] = self._known.get(key) or self._made(picture, f"picture {place}")
        self._known = made
        return tuple(made[key] for key in keys)

    def expanded(self, text: str, pictures: Sequence[Features]) -> str:
        """The text of a rendered conversation, with the placeholders of these pictures. Raises PictureError."""
        return with_places(text, len(pictures))

    def contents(self, ids: Sequence[int], pictures: Sequence[Features]) -> tuple[Content, ...]:
        """The ranges of a prompt's tokens that stand for the pictures. Raises PictureError."""
        placeholder = self._encoder.placeholder
        places = [place for place, token in enumerate(ids) if token == placeholder]
        if len(places) != PLACES * len(pictures):
            raise PictureError(
                f"the prompt has {len(places)} placeholders, and {len(pictures)} pictures take {PLACES} each; leave "
                "the placeholder's text out of messages"
            )
        starts = range(0, len(places), PLACES)
        pairs = zip(starts, pictures, strict=True)
        return tuple(Content(places[start], places[start + PLACES - 1] + 1, each.digest) for start, each in pairs)

    @property
    def _encoder(self) -> Any:
        encoder = self._model.picture_encoder
        assert encoder is not None, "the model sees"
        return encoder

    def _made(self, picture: Any, name: str) -> Features:
        values = self._steps.pixels([picture], [name]).astype(self._encoder.dtype)
        data = values.tobytes()
        return Features(self._encoder.dtype, values.shape, data, sha256(data).hexdigest())


def key_of(picture: Any) -> str:
    if isinstance(picture, Rgba):
        return f"{picture.width} {sha256(picture.data).hexdigest()}"
    if isinstance(picture, bytes | bytearray | memoryview):
        return sha256(picture).hexdigest()
    raise ArgumentTypeError(f"a picture is of type {type(picture).__name__}; give the content of a file as bytes")
