"""Turns text into speech: a voice speaks a text sentence by sentence, even while the text is written."""

from __future__ import annotations

import asyncio
import inspect
import struct
from array import array
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ..errors import OptionError
from ..loading.load_options import EmbedderOptions
from .phonemes import language_of, pieces, sentences

if TYPE_CHECKING:
    from .voice_model import VoiceModel

__all__ = ["SAMPLE_RATE", "Phonemize", "Voice", "wave_of"]

Phonemize: TypeAlias = Callable[[str, str], str | Awaitable[str]]
"""A function of the caller that returns the phonemes of a text; its arguments are the text and the voice's name, such
as af_heart.
"""
SAMPLE_RATE = 24_000
SLOWEST, FASTEST = 0.5, 2.0
DEFAULT = "af_heart"


class Voice:
    """Speaks with a Kokoro model, in the layout of onnx-community/Kokoro-82M-v1.0-ONNX.

    `await Voice.load(folder)` makes one; `async for samples in voice.speak(text)` gives the sound of each sentence.

    Phonemes of English are made in a page. For other languages, and on CPython, give `phonemize`, a function of the
    text and the voice's name, or pass phonemes to `speak`.
    """

    sample_rate = SAMPLE_RATE
    """Samples a second."""

    def __init__(self, model: VoiceModel, phonemize: Phonemize | None) -> None:
        self._model, self._phonemize = model, phonemize
        self._turn = asyncio.Lock()

    @classmethod
    async def load(cls, path: Any, *, phonemize: Phonemize | None = None, **options: Unpack[EmbedderOptions]) -> Voice:
        """Load the model at `path`, in the forms of Model.load. `device` is 'wasm' by default, and also for 'auto': on
        some GPUs WebGPU gives noise.

        Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError, DeviceUnavailableError.
        """
        from .voice_model import VoiceModel  # noqa: PLC0415  (in the extra `reference`)

        return cls(await VoiceModel.load(path, **options), phonemize)

    @property
    def voices(self) -> list[str]:
        """The names of the voices; none if the folder cannot be listed."""
        return list(self._model.names)

    @property
    def default_voice(self) -> str:
        """af_heart, or the first voice of a model that lacks it."""
        names = self._model.names
        return names[0] if names and DEFAULT not in names else DEFAULT

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return self._model.device

    async def speak(
        self,
        text: str | AsyncIterable[str],
        *,
        voice: str | None = None,
        speed: float = 1.0,
        phonemes: bool = False,
    ) -> AsyncIterator[memoryview[float]]:
        """The sound of each sentence, float32 at `sample_rate`. A text may arrive in parts.

        `voice` is the name of a file in voices/, by default `default_voice`; `speed` is from 0.5 to 2. With
        `phonemes` the text is phonemes. Symbols that the model does not know are not spoken.

        Raises OptionError for a text with nothing to speak, ModelFileError for a damaged voice.
        """
        if not SLOWEST <= speed <= FASTEST:
            raise OptionError(f"speed is {speed}; it must be from {SLOWEST} to {FASTEST}")
        name, spoke = voice or self.default_voice, False
        await self._model.styles(name)
        async for sentence in sentences(text):
            spoken = sentence if phonemes else await self._phonemes(sentence, name)
            known = "".join(symbol for symbol in " ".join(spoken.split()) if symbol in self._model.symbols)
            for piece in pieces(known.strip()):
                async with self._turn:
                    samples = await self._model.run(piece, name, speed)
                spoke = True
                yield samples
        if not spoke and isinstance(text, str):
            raise OptionError(f"the text is {text[:80]!r}, which has nothing to speak; give words")

    async def wave(
        self,
        text: str | AsyncIterable[str],
        *,
        voice: str | None = None,
        speed: float = 1.0,
        phonemes: bool = False,
    ) -> bytes:
        """The content of a WAV file, 16 bits, with the whole text; see `speak`."""
        parts = [part async for part in self.speak(text, voice=voice, speed=speed, phonemes=phonemes)]
        return wave_of(parts)

    async def aclose(self) -> None:
        """Free the session."""
        await self._model.aclose()

    async def __aenter__(self) -> Voice:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _phonemes(self, text: str, voice: str) -> str:
        if self._phonemize is not None:
            found = self._phonemize(text, voice)
            spoken = await found if inspect.isawaitable(found) else found
            if not isinstance(spoken, str):
                raise OptionError(f"phonemize gave {spoken!r}; it must give a text of phonemes")
            return spoken
        language = language_of(voice)
        if language not in ("en-US", "en-GB"):
            raise OptionError(
                f"voice {voice!r} speaks {language or 'an unknown language'}; phonemes are made "
                "only for English: give a function `phonemize`, or phonemes"
            )
        return await self._model.host.phonemize(text, language)


def wave_of(parts: Iterable[Iterable[float]]) -> bytes:
    """The content of a WAV file of 16 bits with these samples at SAMPLE_RATE, one after another."""
    data = array("h")
    for part in parts:
        data.extend(round(32767 * max(-1.0, min(1.0, sample))) for sample in part)
    size = 2 * len(data)
    form = struct.pack("<IHHIIHH", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    return (
        b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size) + data.tobytes()
    )
