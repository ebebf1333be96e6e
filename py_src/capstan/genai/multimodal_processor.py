"""Makes a model's inputs from prompts and from sounds or pictures."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Any

from ..device.picture_encoder import grid_features
from ..device.speech_encoder import Features
from ..errors import ArgumentTypeError, OptionError, PictureError, UnsupportedModelError
from ..model import Model as CapstanModel
from ..model_files.model_types import SEEN_TYPES
from ..picture.picture_places import BEGIN, GEMMA, PLACES, VISION, VISION_END
from ..tokenizer import Tokenizer
from .genai_tensors import NamedTensors, Tensor, as_array, of_bytes, token_rows
from .media_files import Audios, Images
from .token_texts import TokenizerStream, decoded, encoded_batch

__all__ = [
    "FEATURES",
    "GRID",
    "IDS",
    "NUMBERS",
    "PIXELS",
    "TYPES",
    "MultiModalProcessor",
    "items_of",
    "pictures_of",
]

FEATURES, IDS, PIXELS = "audio_features", "input_ids", "pixel_values"
GRID, TYPES, NUMBERS = "image_grid_thw", "token_type_ids", "num_image_tokens"


class MultiModalProcessor:
    """Makes a model's inputs from prompts, and from sounds or pictures; `Model.create_multimodal_processor` returns
    one.
    """

    def __init__(self) -> None:
        raise TypeError("MultiModalProcessor: No constructor defined!")

    @classmethod
    def _of(cls, model: CapstanModel) -> MultiModalProcessor:
        name = model.config.processor
        if name is None:
            raise UnsupportedModelError(
                f"there is no multimodal processor: a model of type {model.type!r} takes only text"
            )
        if model.config.vision is not None and model.type not in SEEN_TYPES:
            raise UnsupportedModelError(
                f"there is no multimodal processor for a repository of type {model.type!r}, as in onnxruntime-genai; "
                "use it in a chat, as in docs/see.md"
            )
        made = cls.__new__(cls)
        made._model, made._tokenizer = model, Tokenizer(model)
        if model.config.vision is None:
            from ..sound.sound_processor import SoundProcessor  # noqa: PLC0415  (numpy: pages that hear)

            made._steps = SoundProcessor.of_config(model.tokenizer_files[name], name)
        else:
            from ..generation.picture_prompt import PicturePrompts  # noqa: PLC0415  (Pillow: pages that see)

            made._steps = PicturePrompts(model)
        return made

    _model: CapstanModel
    _tokenizer: Tokenizer
    _steps: Any

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        images: Images | None = None,
        audios: Audios | None = None,
    ) -> NamedTensors:
        """Make the inputs of a model. Whisper gets `audio_features` [sounds, bands, frames], and the `input_ids` of one
        prompt, or of one for each sound. Gemma 3 gets the `input_ids` of one prompt, in which each `<start_of_image>`
        stands for a picture, and the `pixel_values` of its pictures. In prompts of Qwen2.5-VL `<|vision_start|>` stands
        for a picture, and it also gets `image_grid_thw`. Raises SoundError, PictureError, OptionError."""
        if self._model.config.vision is not None:
            if audios is not None:
                raise UnsupportedModelError(
                    f"audios were given, but a model of type {self._model.type!r} takes pictures: leave them out"
                )
            return self._seen(prompt, images)
        if images is not None:
            raise UnsupportedModelError(
                f"images were given, but a model of type {self._model.type!r} takes sounds: leave them out"
            )
        if audios is None:
            raise OptionError("audios is None; give Audios.open(path)")
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if not texts:
            raise OptionError("no prompt was given; Whisper's begins with '<|startoftranscript|>'")
        encoder = self._model.speech_encoder
        features = self._steps.features(audios._files, audios._names)
        found = NamedTensors()
        found[FEATURES] = Tensor(features if encoder is None else features.astype(encoder.dtype))
        found[IDS] = encoded_batch(self._tokenizer, texts, self._model.config.pad_token_id)
        return found

    def _seen(self, prompt: str | Sequence[str] | None, images: Images | None) -> NamedTensors:
        """The inputs of a model that sees, in the native package's form for Gemma 3."""
        count = len(images._files) if images is not None else 0
        if prompt is not None and not isinstance(prompt, str):
            raise ArgumentTypeError("prompts: a model that sees takes one prompt; give a text")
        if self._model.config.vision is not None and self._model.config.vision.grid:
            return self._in_patches(prompt or " ".join([f"{VISION} {VISION_END}"] * count), images)
        text = self._steps.expanded(prompt or " ".join([BEGIN] * count), [GEMMA] * count)
        found = NamedTensors()
        found[IDS] = encoded_batch(self._tokenizer, [text], self._model.config.pad_token_id)
        if images is not None:
            pixels, _ = self._steps.pixels(images._files, images._names)
            found[PIXELS] = Tensor(pixels)
            [ids] = token_rows(found[IDS])
            seen = [int(token == self._steps.placeholder) for token in ids]
            found[TYPES] = Tensor(as_array(seen, "int32", [1, len(ids)]))
            found[NUMBERS] = Tensor(as_array([PLACES] * count, "int64", [count]))
        return found

    def _in_patches(self, prompt: str, images: Images | None) -> NamedTensors:
        """The inputs of Qwen2.5-VL in the native package's form, except that no zeros follow the patches of smaller
        pictures.
        """
        files = zip(images._files, images._names, strict=True) if images is not None else ()
        made = [self._steps.patches(file, name) for file, name in files]
        places = [each.place for each in made]
        found = NamedTensors()
        found[IDS] = encoded_batch(
            self._tokenizer, [self._steps.expanded(prompt, places)], self._model.config.pad_token_id
        )
        found[NUMBERS] = Tensor(as_array([sum(place.count for place in places)], "int64", [1]))
        if made:
            [(dtype, width)] = {(each.features.dtype, each.features.dims[1]) for each in made}
            values = b"".join(each.features.data for each in made)
            rows = sum(each.features.dims[0] for each in made)
            found[PIXELS] = Tensor(of_bytes(values, dtype, [rows, width]))
            grids = [size for each in made for size in each.features.grid]
            found[GRID] = Tensor(as_array(grids, "int64", [len(made), 3]))
        return found

    def decode(self, tokens: Any, /) -> str:
        """The text of token ids."""
        return decoded(self._tokenizer, tokens)

    def create_stream(self) -> TokenizerStream:
        """A decoder for ids that arrive one at a time."""
        return TokenizerStream._of(self._tokenizer.create_stream())


def pictures_of(inputs: NamedTensors) -> list[Features]:
    """The pixel values of each picture, or its patches if the pictures have grids. Raises PictureError."""
    pixels = inputs[PIXELS]
    if GRID not in inputs:
        return items_of(pixels)
    grids = token_rows(inputs[GRID])
    if len(pixels.shape()) != 2 or any(len(grid) != 3 for grid in grids) or sum(map(prod, grids)) != pixels.shape()[0]:
        raise PictureError(
            f"{GRID} is {grids}, and {PIXELS} are {pixels.shape()}; give the frames, rows and columns of each picture, "
            "whose product is its number of patches"
        )
    count, width = pixels.shape()
    data, ends = bytes(pixels.data()), [*accumulate(map(prod, grids))]
    size = len(data) // count if count else 0
    return [
        grid_features(pixels.dtype, width, data[(end - prod(grid)) * size : end * size], grid)
        for grid, end in zip(grids, ends, strict=True)
    ]


def items_of(tensor: Tensor) -> list[Features]:
    """The features of each sound, or the pixel values of each picture, cut from the tensor of all."""
    count, *dims = tensor.shape()
    data = bytes(tensor.data())
    size = len(data) // count if count else 0
    parts = [data[place * size : (place + 1) * size] for place in range(count)]
    return [Features(tensor.dtype, (1, *dims), part, sha256(part).hexdigest()) for part in parts]
