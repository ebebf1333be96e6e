"""Prepares sounds for a model whose encoder takes samples, such as Moonshine. Long sounds are cut where they are
quietest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UnsupportedModelError
from ..model_files.bounded_json import clipped
from ..model_files.config_section import parse_object
from .sound_processor import RATE, SoundProcessor, Sounds

__all__ = ["HeardWaveform", "Waveforms", "sounds_of"]

Array = np.ndarray[Any, np.dtype[np.float32]]
EXTRACTOR = "Wav2Vec2FeatureExtractor"
LEAST = 1024
"""The number of samples from which the encoder makes a row; shorter sounds are followed by silence."""
LEAST_PART = 20 * RATE
"""The smallest number of samples in a part of a long sound."""
QUIET = RATE // 10
"""The number of samples over which power is measured."""
EXPECTED = {"feature_size": 1, "sampling_rate": RATE, "do_normalize": False}


@dataclass(frozen=True)
class Waveforms(Sounds):
    """The processor of a model that hears samples instead of a spectrum."""

    seconds: int = 30
    hop: int = 1

    def heard(self, samples: Array) -> HeardWaveform:
        """The windows of checked samples."""
        return HeardWaveform(self, samples)


class HeardWaveform:
    """One channel's samples at RATE."""

    def __init__(self, about: Waveforms, samples: Array) -> None:
        self._about, self._samples = about, samples
        self.frames = len(samples)

    def window(self, first: int, last: int | None = None) -> Array:
        """The samples from `first` to before `last`, float32 [samples]."""
        found = self._samples[first : first + self._about.frames if last is None else last]
        return np.pad(found, (0, max(0, LEAST - len(found))))

    def parts(self) -> Iterator[tuple[int, int]]:
        """The first and last sample of each part that the model hears at once."""
        first, whole = 0, self._about.frames
        while self.frames - first > whole:
            near = self._samples[first + LEAST_PART : first + whole]
            powers = np.square(near[: len(near) // QUIET * QUIET]).reshape(-1, QUIET).mean(axis=1)
            last = first + LEAST_PART + int(powers.argmin()) * QUIET + QUIET // 2
            yield first, last
            first = last
        yield first, self.frames


def sounds_of(data: str | bytes, name: str) -> SoundProcessor | Waveforms:
    """The processor for a file's content; messages call it `name`. Raises ConfigError, UnsupportedModelError."""
    config = parse_object(data, name)
    if config.get("feature_extractor_type") != EXTRACTOR:
        return SoundProcessor.of_config(data, name)
    for key, value in EXPECTED.items():
        if config.get(key, value) != value:
            raise UnsupportedModelError(f"{name}: {key} is {clipped(config[key])}; Capstan supports only {value}")
    return Waveforms()
