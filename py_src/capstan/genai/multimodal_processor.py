"""Sounds, and the processor that makes a speech model's inputs of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..device.speech_encoder import Features
from ..errors import ModelFileError, OptionError, SoundError, UnsupportedModelError
from ..host.disk_file import read_file
from ..model import Model as CapstanModel
from ..tokenizer import Tokenizer
from .genai_tensors import NamedTensors, Tensor
from .token_texts import TokenizerStream, decoded, encoded_batch

__all__ = ["FEATURES", "IDS", "Audios", "MultiModalProcessor", "sounds_of"]

MOST_BYTES = 1 << 29
"""The limit of a sound file's bytes: 30 seconds of 8 channels at 192 kHz have 368 MB as 64-bit floats."""
FEATURES, IDS = "audio_features", "input_ids"


class Audios:
    """Sound files in the WAV format."""

    def __init__(self) -> None:
        raise TypeError("Audios: No constructor defined!")

    @classmethod
    def _of(cls, files: Sequence[bytes], names: Sequence[str]) -> Audios:
        if not files:
            raise SoundError("no files of sound were given; give at least one")
        made = cls.__new__(cls)
        made._files, made._names = tuple(files), tuple(names)
        return made

    _files: tuple[bytes, ...]
    _names: tuple[str, ...]

    @staticmethod
    def open(*paths: str) -> Audios:
        """The files of these paths, in the interpreter's file system. Raises SoundError."""
        try:
            return Audios._of([read_file(Path(path), MOST_BYTES) for path in paths], paths)
        except ModelFileError as error:
            raise SoundError(str(error)) from error

    @staticmethod
    def open_bytes(*contents: bytes) -> Audios:
        """The contents of such files. Raises SoundError for one of no length."""
        names = [f"sound {place}" for place in range(len(contents))]
        for name, data in zip(names, contents, strict=True):
            if not len(data):
                raise SoundError(f"{name} has no bytes; give the content of a WAV file")
        return Audios._of([bytes(data) for data in contents], names)


class MultiModalProcessor:
    """Makes a speech model's inputs of prompts and sounds; `Model.create_multimodal_processor` gives one."""

    def __init__(self) -> None:
        raise TypeError("MultiModalProcessor: No constructor defined!")

    @classmethod
    def _of(cls, model: CapstanModel) -> MultiModalProcessor:
        about = model.config.encoder
        if about is None:
            raise UnsupportedModelError(f"a multimodal processor: a model of type {model.type!r} takes text only")
        made = cls.__new__(cls)
        from ..sound.sound_processor import SoundProcessor

        made._model, made._tokenizer = model, Tokenizer(model)
        made._sounds = SoundProcessor.of_config(model.tokenizer_files[about.processor], about.processor)
        return made

    _model: CapstanModel
    _tokenizer: Tokenizer
    _sounds: Any

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        images: Any = None,
        audios: Audios | None = None,
    ) -> NamedTensors:
        """`audio_features` [sounds, bands, frames], and `input_ids` of the prompts: of one text, or of one for each
        sound. Raises SoundError, OptionError."""
        if images is not None:
            raise UnsupportedModelError(f"images: a model of type {self._model.type!r} hears and does not see")
        if audios is None:
            raise OptionError("audios is None; give Audios.open(path)")
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if not texts:
            raise OptionError("no prompt was given; Whisper's begins with '<|startoftranscript|>'")
        encoder = self._model.speech_encoder
        features = self._sounds.features(audios._files, audios._names)
        found = NamedTensors()
        found[FEATURES] = Tensor(features if encoder is None else features.astype(encoder.dtype))
        found[IDS] = encoded_batch(self._tokenizer, texts, self._model.config.pad_token_id)
        return found

    def decode(self, tokens: Any, /) -> str:
        """The text of token ids."""
        return decoded(self._tokenizer, tokens)

    def create_stream(self) -> TokenizerStream:
        """A decoder for ids that come one at a time."""
        return TokenizerStream._of(self._tokenizer.create_stream())


def sounds_of(features: Tensor) -> list[Features]:
    """The features of each sound, from those of a batch."""
    count, *dims = features.shape()
    data = bytes(features.data())
    size = len(data) // count if count else 0
    parts = [data[place * size : (place + 1) * size] for place in range(count)]
    return [Features(features.dtype, (1, *dims), part, sha256(part).hexdigest()) for part in parts]
