"""The processors that make a model's inputs of prompts, and of sounds or pictures."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from ..device.speech_encoder import Features
from ..errors import ArgumentTypeError, OptionError, UnsupportedModelError
from ..model import Model as CapstanModel
from ..model_files.model_types import SEEN_TYPES
from ..picture.picture_places import BEGIN, GEMMA, PLACES
from ..tokenizer import Tokenizer
from .genai_tensors import NamedTensors, Tensor, as_array, token_rows
from .media_files import Audios, Images
from .token_texts import TokenizerStream, decoded, encoded_batch

__all__ = ["FEATURES", "IDS", "NUMBERS", "PIXELS", "TYPES", "MultiModalProcessor", "items_of"]

FEATURES, IDS, PIXELS = "audio_features", "input_ids", "pixel_values"
TYPES, NUMBERS = "token_type_ids", "num_image_tokens"


class MultiModalProcessor:
    """Makes a model's inputs of prompts, and of sounds or pictures; `Model.create_multimodal_processor` gives one."""

    def __init__(self) -> None:
        raise TypeError("MultiModalProcessor: No constructor defined!")

    @classmethod
    def _of(cls, model: CapstanModel) -> MultiModalProcessor:
        name = model.config.processor
        if name is None:
            raise UnsupportedModelError(f"a multimodal processor: a model of type {model.type!r} takes text only")
        if model.config.vision is not None and model.type not in SEEN_TYPES:
            raise UnsupportedModelError(
                f"a multimodal processor: onnxruntime-genai has none for a repository of type {model.type!r}; ask it "
                "in a chat, as docs/see.md says"
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
        """For Whisper `audio_features` [sounds, bands, frames], and `input_ids` of the prompts: of one text, or of one
        for each sound. For Gemma 3 `input_ids` of one prompt, in which each `<start_of_image>` stands for a picture,
        and with pictures their `pixel_values`. Raises SoundError, PictureError, OptionError."""
        if self._model.config.vision is not None:
            if audios is not None:
                raise UnsupportedModelError(f"audios: a model of type {self._model.type!r} sees and does not hear")
            return self._seen(prompt, images)
        if images is not None:
            raise UnsupportedModelError(f"images: a model of type {self._model.type!r} hears and does not see")
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
        """The inputs of a model that sees, as the native package makes them for Gemma 3."""
        count = len(images._files) if images is not None else 0
        if prompt is not None and not isinstance(prompt, str):
            raise ArgumentTypeError("prompts: a model that sees takes one prompt; give a text")
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

    def decode(self, tokens: Any, /) -> str:
        """The text of token ids."""
        return decoded(self._tokenizer, tokens)

    def create_stream(self) -> TokenizerStream:
        """A decoder for ids that come one at a time."""
        return TokenizerStream._of(self._tokenizer.create_stream())


def items_of(tensor: Tensor) -> list[Features]:
    """The features of each sound, or the pixel values of each picture, from those of all."""
    count, *dims = tensor.shape()
    data = bytes(tensor.data())
    size = len(data) // count if count else 0
    parts = [data[place * size : (place + 1) * size] for place in range(count)]
    return [Features(tensor.dtype, (1, *dims), part, sha256(part).hexdigest()) for part in parts]
