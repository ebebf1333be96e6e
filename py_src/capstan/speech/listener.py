"""Makes live captions: it hears samples as they arrive, cuts them where speech stops, and turns each part into text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

import numpy as np

from ..errors import SoundError
from ..model_files.bounded_json import clipped
from .caption import Caption, LiveOptions
from .speech_detector import SpeechDetector
from .transcription_run import Transcription
from .utterances import RATE, WINDOW, Utterance, Utterances

__all__ = ["Listener"]

Samples = np.ndarray[Any, np.dtype[np.float32]]
PADDING = RATE // 5
"""The most silence at each end of an utterance that is heard with it."""
SHARE = 2
"""Partial texts take at most this fraction (1 / N) of the time."""


class Listener:
    """A sound under way. `hear` takes the next samples, `end` ends the sound."""

    def __init__(
        self,
        detector: SpeechDetector,
        transcribe: Callable[[Samples], Awaitable[Transcription]],
        options: LiveOptions,
        longest: int,
    ) -> None:
        """An utterance has at most `longest` samples."""
        self._detector, self._transcribe, self._options = detector, transcribe, options
        silence = round(options.silence * RATE)
        self._cutter = Utterances(options.threshold, silence, min(PADDING, silence // 2), longest)
        self._kept = np.zeros(0, np.float32)
        self._first = 0
        """The index of the first kept sample."""
        self._seen = 0
        """The number of samples that the detector has heard."""
        self._shown = 0
        """The end of the last partial text."""
        self._wait = options.interval
        """Seconds of sound between partial texts."""
        self._took = 0.0
        """Seconds that the last text took."""
        self._early: tuple[Utterance, str] | None = None
        """An utterance that seemed to end, and its text."""

    async def hear(self, samples: Any) -> AsyncIterator[Caption]:
        """The captions that the next samples give. A block may have any number of samples. Raises SoundError."""
        self._kept = np.concatenate([self._kept, checked(samples)])
        heard = self._first + len(self._kept)
        whole = (heard - self._seen) // WINDOW * WINDOW
        async for each in self._cuts(self._part(self._seen, self._seen + whole)):
            yield each
        begun = self._cutter.open
        if self._options.interval and begun is not None and heard - max(begun, self._shown) >= self._wait * RATE:
            yield await self._caption(Utterance(begun, heard), False)
            self._shown = heard
            self._wait = max(self._options.interval, SHARE * self._took)
        ending = self._cutter.ending
        # The final text is made while waiting for the silence that ends it, unless a text takes longer than that.
        if ending is not None and self._took < self._options.silence and (not self._early or self._early[0] != ending):
            self._early = ending, await self._text(ending)

    async def end(self) -> AsyncIterator[Caption]:
        """The caption of the utterance at the end of the sound."""
        heard = self._first + len(self._kept)
        rest = self._part(self._seen, heard)
        if len(rest):
            async for each in self._cuts(np.pad(rest, (0, WINDOW - len(rest)))):
                yield each
        for utterance in self._cutter.end(heard):
            yield await self._caption(utterance, True)

    async def aclose(self) -> None:
        """Free the detector."""
        await self._detector.aclose()

    async def _cuts(self, samples: Samples) -> AsyncIterator[Caption]:
        """The final captions of whole windows; samples that no later caption needs are dropped."""
        for probability in await self._detector.probabilities(samples):
            self._seen += WINDOW
            for utterance in self._cutter.push(probability):
                yield await self._caption(utterance, True)
        needed = max(self._first, min(self._cutter.needed, self._seen))
        self._kept, self._first = self._kept[needed - self._first :], needed

    async def _caption(self, of: Utterance, final: bool) -> Caption:
        text = self._early[1] if self._early and self._early[0] == of else await self._text(of)
        return Caption(text, of.start / RATE, of.end / RATE, final)

    async def _text(self, of: Utterance) -> str:
        before = monotonic()
        found = await self._transcribe(self._part(of.start, of.end))
        self._took = monotonic() - before
        return found.text

    def _part(self, start: int, end: int) -> Samples:
        return self._kept[start - self._first : end - self._first]


def checked(samples: Any) -> Samples:
    """A block of samples. Raises SoundError for NaN, infinity, and anything but an array of one dimension."""
    try:
        found = np.array(samples, np.float32)
    except (TypeError, ValueError) as error:
        raise SoundError(f"a block is {clipped(samples)}; expected samples at {RATE} Hz, an array of floats") from error
    if found.ndim != 1:
        raise SoundError(f"a block is an array of {found.ndim} dimensions; expected [samples], of one channel")
    if not np.isfinite(found).all():
        raise SoundError("a block has samples that are NaN or infinite; check the microphone and its driver")
    return found
