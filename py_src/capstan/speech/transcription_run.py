"""Runs one transcription: it hears the windows of a sound one after another, and returns their segments."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..model import Model
from ..tokenizer import Tokenizer
from .segments import cuts
from .speech_tokens import SpeechTokens

if TYPE_CHECKING:
    from ..device.speech_encoder import Features, SpeechEncoder
    from ..sound.sound_processor import SoundProcessor
    from ..sound.waveform import Waveforms

__all__ = ["Segment", "SpeechModel", "Transcription", "TranscriptionRun"]

ENGLISH = "en"
MOST_TOKENS = 6.5
"""The most tokens for a second of speech: without a limit Moonshine may repeat itself, according to its authors."""


@dataclass(frozen=True)
class Segment:
    """A part of a sound's text. The joined texts of all parts are the whole text."""

    text: str
    start: float | None = None
    """Seconds from the start of the sound; None without timestamps."""
    end: float | None = None


@dataclass(frozen=True)
class Transcription:
    """The text of a sound."""

    text: str
    segments: tuple[Segment, ...]
    """The segments in order; empty without timestamps."""
    language: str
    """The code of the spoken language, such as 'en'."""
    duration: float
    """The length of the sound in seconds."""

    def vtt(self) -> str:
        """The segments as captions in the WebVTT format. Raises OptionError without timestamps."""
        shown = []
        for each in self.segments:
            text = each.text.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            shown.append(f"\n{clock(each.start)} --> {clock(each.end)}\n{text}\n")
        if self.text and not shown:
            raise OptionError("the segments have no times; transcribe with timestamps=True")
        return "".join(["WEBVTT\n", *shown])


@dataclass(frozen=True)
class SpeechModel:
    """A model with the processor of its sounds and the tokenizer of its texts."""

    model: Model
    encoder: SpeechEncoder
    tokenizer: Tokenizer
    tokens: SpeechTokens
    sounds: SoundProcessor | Waveforms

    def generator(self, stamped: bool, longest: int | None = None) -> Generator:
        """A generator of up to `longest` tokens, with the rules for timestamps or for text without them."""
        model, known = self.model, self.tokens
        vocabulary = model.config.vocab_size
        params = GeneratorParams(model)
        limits: dict[str, Any] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "batch_size": 1}
        if stamped:
            params.search = replace(params.search, timestamps=known.rules)
        else:
            never = [[token] for token in known.suppressed if token < vocabulary]
            first = [[known.without_timestamps, token] for token in known.suppressed_first if token < vocabulary]
            limits["bad_words_ids"] = [*never, *first]
        most = model.config.context_length
        params.set_search_options(max_length=min(most, longest or most), **limits)
        return Generator(model, params)


class TranscriptionRun:
    """A transcription under way: an asynchronous iterator over its segments, which can be iterated once."""

    def __init__(self, speech: SpeechModel, samples: Any, language: str | None, task: str, timestamps: bool) -> None:
        from ..sound.sound_processor import RATE  # noqa: PLC0415  (numpy: pages that hear)

        self._speech, self._task, self._timestamps = speech, task, timestamps
        self._sound = speech.sounds.heard(samples)
        self._long = self._sound.frames > speech.sounds.frames
        self._language = language
        self._heard: list[Segment] = []
        self._duration = len(samples) / RATE

    @property
    def result(self) -> Transcription:
        """The text so far; after the iteration the whole text."""
        text = "".join(each.text for each in self._heard).strip()
        segments = tuple(self._heard) if self._timestamps else ()
        return Transcription(text, segments, self._language or ENGLISH, self._duration)

    async def __aiter__(self) -> AsyncIterator[Segment]:
        if self._speech.tokens.plain:
            async for segment in self._parts():
                self._heard.append(segment)
                yield segment
            return
        stamped = self._timestamps or self._long
        async with self._speech.generator(stamped) as generator:
            async for segment in self._segments(generator) if stamped else self._words(generator):
                self._heard.append(segment)
                yield segment

    async def _begin(self, generator: Generator, column: int, stamped: bool) -> None:
        """Have the generator hear a window, and give it the prompt."""
        known = self._speech.tokens
        generator.rewind_to(0)
        generator.hear([self._features(self._sound.window(column))])
        generator.append_tokens([known.start])
        if self._language is None and known.languages:
            logits = await generator.get_logits_async()
            self._language = max(known.languages, key=lambda code: logits[known.languages[code]])
        if prompt := known.prompt(self._language, self._task, stamped):
            generator.append_tokens(prompt)

    def _features(self, window: Any) -> Features:
        from ..device.speech_encoder import Features  # noqa: PLC0415  (for models that hear only)

        data = window.astype(self._speech.encoder.dtype).tobytes()
        return Features(self._speech.encoder.dtype, (1, *window.shape), data, sha256(data).hexdigest())

    async def _parts(self) -> AsyncIterator[Segment]:
        """The text of each part of the sound, for a model without timestamps."""
        from ..sound.sound_processor import RATE  # noqa: PLC0415  (numpy: pages that hear)
        from ..sound.waveform import HeardWaveform  # noqa: PLC0415  (numpy: pages that hear)

        assert isinstance(self._sound, HeardWaveform), "a model with spectrum features has timestamps"
        for first, last in self._sound.parts():
            longest = 2 + math.ceil(MOST_TOKENS * (last - first) / RATE)
            async with self._speech.generator(False, longest) as generator:
                generator.hear([self._features(self._sound.window(first, last))])
                generator.append_tokens([self._speech.tokens.start])
                before = " " if first else ""
                async for each in self._text_of(generator):
                    yield Segment(before + each.text)
                    before = ""

    async def _words(self, generator: Generator) -> AsyncIterator[Segment]:
        """The text of the only window, token by token."""
        await self._begin(generator, 0, False)
        async for each in self._text_of(generator):
            yield each

    async def _text_of(self, generator: Generator) -> AsyncIterator[Segment]:
        stream = self._speech.tokenizer.create_stream()
        async for token in generator:
            if text := stream.decode(token):
                yield Segment(text)
        if text := stream.flush():
            yield Segment(text)

    async def _segments(self, generator: Generator) -> AsyncIterator[Segment]:
        """The segments of all windows. Each window begins where the last segment ended."""
        column, whole, begin = 0, self._speech.sounds.frames, self._speech.tokens.timestamps
        while column < self._sound.frames:
            await self._begin(generator, column, True)
            before = generator.token_count()
            async for _ in generator:
                pass
            picked = generator.get_sequence()[before:]
            found, step = cuts(picked, begin, column, min(whole, self._sound.frames - column))
            for each in found:
                if text := self._text(each.tokens):
                    yield Segment(text, each.start, each.end) if self._timestamps else Segment(text)
            column += step

    def _text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, including timestamps, some of which are not in the tokenizer's vocabulary."""
        return self._speech.tokenizer.decode(each for each in tokens if each < self._speech.tokens.timestamps)


def clock(seconds: float | None) -> str:
    """A time of WebVTT: hours, minutes, seconds, thousandths."""
    thousandths = round(1000 * (seconds or 0.0))
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"
