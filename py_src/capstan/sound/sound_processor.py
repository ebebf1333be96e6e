"""Turns sound files into the features that a speech model takes, by the steps of audio_processor_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, SoundError, UnsupportedModelError
from ..model_files.bounded_json import clipped
from ..model_files.config_section import parse_object
from .resampling import downsampled, upsampled
from .sound_file import SoundFile, opened
from .spectrum import LEAST_POWER, hann, log_mel, mel_filters, scaled
from .wave_file import require_finite, too_long

__all__ = ["RATE", "HeardSound", "SoundProcessor", "Sounds"]

Array = np.ndarray[Any, np.dtype[np.float32]]
RATE = 16_000
"""The sample rate of the features, in Hz."""
LEAST_RATE = 4000
STEPS = ("AudioDecoder", "STFTNorm", "LogMelSpectrum")
EXTRACTOR = "WhisperFeatureExtractor"
KNOWN = {
    "AudioDecoder": {"target_sample_rate": RATE, "downsampling_rate": RATE, "stereo_to_mono": 1},
    "STFTNorm": {},
    "LogMelSpectrum": {"feature_first": 1, "no_padding": 0},
}
"""The only supported values of fields that change a step."""
SIZES = {"STFTNorm": ("n_fft", "hop_length", "frame_length"), "LogMelSpectrum": ("n_fft", "hop_length", "n_mel")}
MOST = 1 << 20
LONGEST_SECONDS = 3600


class Sounds:
    """Reads the samples of sounds for a model that hears `seconds` at a time, in steps of `hop` samples."""

    hop: int
    seconds: int

    @property
    def frames(self) -> int:
        """Columns of the features of a sound."""
        return self.seconds * RATE // self.hop

    def samples(self, data: bytes, name: str, longest: float) -> Array:
        """The mean of a sound file's channels, of at most `longest` seconds, at RATE: float32 [samples]. Raises
        SoundError."""
        file = opened(data, name, longest)
        if file.frames and file.rate < LEAST_RATE:
            raise SoundError(f"{name} has {file.rate} samples a second; speech needs at least {LEAST_RATE}")
        step = self.seconds * file.rate
        parts = [self._resampled(file, start, start + step) for start in range(0, file.frames, step)]
        return self.checked(np.concatenate(parts) if parts else np.zeros(0, np.float32), name, longest)

    def checked(self, samples: Any, name: str, longest: float) -> Array:
        """Samples of one channel at RATE, from an array of numbers. Raises SoundError for other values, NaN and
        infinity, and for too few or too many samples.
        """
        try:
            found = np.asarray(samples, np.float32)
        except (TypeError, ValueError) as error:
            raise SoundError(f"{name} is {clipped(samples)}; expected a sound file or samples") from error
        if found.ndim != 1:
            raise SoundError(f"{name} is an array of {found.ndim} dimensions; expected [samples], of one channel")
        if not len(found):
            raise SoundError(f"{name} has no samples; give a sound longer than 0 seconds")
        require_finite(found, name)
        if len(found) < self.hop:
            raise SoundError(f"{name} has {len(found)} samples at {RATE} a second; give at least {self.hop}")
        if len(found) > longest * RATE:
            raise too_long(name, len(found) / RATE, longest)
        return found

    def _resampled(self, file: SoundFile, start: int, stop: int) -> Array:
        """The frames from `start` to before `stop` at RATE. The filter also reads one second of sound before and after
        them.
        """
        if file.rate == RATE:
            return mean(file.samples(start, stop))
        before, after = max(0, start - file.rate), stop + file.rate
        resampled = downsampled if file.rate > RATE else upsampled
        found = resampled(mean(file.samples(before, after)), file.rate, RATE)
        first = RATE if start else 0
        return found[first : first + self.seconds * RATE]


@dataclass(frozen=True)
class SoundProcessor(Sounds):
    """The steps of one model: a Fourier transform over `size` samples every `hop`, in `bands` bands, for sounds of at
    most `seconds`."""

    size: int
    hop: int
    bands: int
    seconds: int
    window: Array
    mirrored: bool = False
    """Whether a frame at the start of a sound hears the sound mirrored, as in transformers, instead of silence before
    it.
    """

    @classmethod
    def of_config(cls, data: str | bytes, name: str) -> SoundProcessor:
        """The processor of a file's content, which may be transformers' preprocessor_config.json; messages call it
        `name`. Raises ConfigError, UnsupportedModelError for unsupported steps.
        """
        config = parse_object(data, name)
        if "feature_extractor_type" in config:
            return cls.of_extractor(config, name)
        steps = steps_of(config, name)
        if tuple(kind for kind, _ in steps) != STEPS:
            kinds = ", ".join(kind for kind, _ in steps)
            raise UnsupportedModelError(f"{name}: its steps are {kinds}; Capstan computes {', '.join(STEPS)}")
        for kind, fields in steps:
            for field, value in KNOWN[kind].items():
                if fields.get(field, value) != value:
                    raise UnsupportedModelError(
                        f"{name}: {kind}.{field} is {fields[field]!r}; Capstan supports only {value}"
                    )
        transform, mel = steps[1][1], steps[2][1]
        size, hop, frame = (positive(transform, key, f"{name}: STFTNorm") for key in SIZES["STFTNorm"])
        mel_size, mel_hop, bands = (positive(mel, key, f"{name}: LogMelSpectrum") for key in SIZES["LogMelSpectrum"])
        if not size == frame == mel_size or hop != mel_hop:
            raise ConfigError(
                f"{name}: n_fft is {size}, frame_length {frame}, hop_length {hop}, and LogMelSpectrum has {mel_size} "
                f"and {mel_hop}; they must be equal"
            )
        seconds = positive(mel, "chunk_size", f"{name}: LogMelSpectrum", LONGEST_SECONDS)
        return cls(size, hop, bands, seconds, window_of(transform, size, name))

    @classmethod
    def of_extractor(cls, config: Mapping[str, Any], name: str) -> SoundProcessor:
        """The processor of transformers' WhisperFeatureExtractor. Raises ConfigError, UnsupportedModelError."""
        kind, rate = config["feature_extractor_type"], config.get("sampling_rate", RATE)
        if kind != EXTRACTOR or rate != RATE:
            raise UnsupportedModelError(
                f"{name} is a {clipped(kind)} of {rate} samples a second; Capstan supports only {EXTRACTOR} of {RATE}"
            )
        size, hop, bands = (positive(config, key, name) for key in ("n_fft", "hop_length", "feature_size"))
        return cls(size, hop, bands, positive(config, "chunk_length", name, LONGEST_SECONDS), hann(size), True)

    def features(self, files: Sequence[bytes], names: Sequence[str]) -> Array:
        """The features of sound files, float32 [files, bands, frames]; `names` are their names in messages. Raises
        SoundError.
        """
        sounds = [self.samples(data, name, self.seconds) for data, name in zip(files, names, strict=True)]
        return np.stack([HeardSound(self, samples).window(0) for samples in sounds])

    def heard(self, samples: Array) -> HeardSound:
        """The spectrum of checked samples."""
        return HeardSound(self, samples)


class HeardSound:
    """The spectrum of one channel's samples at RATE, which is computed once."""

    def __init__(self, processor: SoundProcessor, samples: Array) -> None:
        self._about = processor
        self.frames = len(samples) // processor.hop
        """Columns of the spectrum of the whole sound."""
        self._short = len(samples) <= processor.seconds * RATE
        columns = self.frames
        if processor.mirrored and self._short:
            # The frames that hear the sound's end, and silence after it.
            columns = min(processor.frames, -(-(len(samples) + processor.size // 2) // processor.hop))
        self._logs = np.empty((processor.bands, columns), np.float32)
        filters = mel_filters(processor.size, processor.bands, RATE)
        for start in range(0, columns, processor.frames):
            stop = min(start + processor.frames, columns)
            near = self._around(samples, start * processor.hop, (stop - 1) * processor.hop)
            self._logs[:, start:stop] = log_mel(near, processor.hop, processor.window, filters)
        self._loudest = self._logs.max()

    def window(self, first: int) -> Array:
        """The features from a frame on, float32 [bands, frames]. As in Whisper, a sound that is shorter than the window
        is followed by silence, and the last window of a longer one by zeros."""
        logs = self._logs[:, first : first + self._about.frames]
        after = np.zeros((), np.float32)
        if self.frames <= self._about.frames and not first:
            least = np.log10(LEAST_POWER) if self._about.mirrored else -np.inf
            after = scaled(np.array(least, np.float32), self._loudest)
        found = np.full((self._about.bands, self._about.frames), after, np.float32)
        found[:, : logs.shape[1]] = scaled(logs, self._loudest)
        return found

    def _around(self, samples: Array, first: int, last: int) -> Array:
        """The samples from half a frame before the first to half a frame after the last. At both ends there is silence,
        or the sound mirrored."""
        half = self._about.size // 2
        start, stop = first - half, last + half
        before, after = max(-start, 0), max(stop - len(samples), 0)
        near = np.pad(samples[max(start, 0) : stop], (before, after))
        if self._about.mirrored:
            front = samples[1 : before + 1][::-1]
            near[before - len(front) : before] = front
            if after and not self._short:
                near[-after:] = samples[-after - 1 : -1][::-1]
        return near


def mean(channels: Array) -> Array:
    """The mean of channels, [frames, channels]."""
    if channels.shape[1] == 1:
        return channels[:, 0]
    found: Array = channels.mean(axis=1, dtype=np.float32)
    return found


def steps_of(config: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The type and the fields of each step. Raises ConfigError."""
    try:
        sequence = config["feature_extraction"]["sequence"]
        steps = [(each["operation"]["type"], each["operation"].get("attrs", {})) for each in sequence]
    except (KeyError, TypeError, AttributeError) as error:
        wanted = "feature_extraction.sequence, a list of operations with a type"
        raise ConfigError(f"{name}: {error!r}; expected {wanted}: copy the file again") from error
    for kind, fields in steps:
        if not isinstance(kind, str) or not isinstance(fields, dict):
            raise ConfigError(f"{name}: a step of type {kind!r} has fields {fields!r}; expected a text and an object")
    return steps


def positive(fields: Mapping[str, Any], key: str, where: str, most: int = MOST) -> int:
    value = fields.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{where}.{key} is {value!r}; expected a whole number from 1 to {most}: copy the file again")
    return value


def window_of(fields: Mapping[str, Any], size: int, name: str) -> Array:
    """The factors of a frame's samples. Raises ConfigError."""
    given = fields.get("hann_win")
    if given is None:
        if fields.get("win_fn", "hann") != "hann":
            raise UnsupportedModelError(
                f"{name}: STFTNorm.win_fn is {fields['win_fn']!r}; Capstan supports only 'hann'"
            )
        return hann(size)
    if not isinstance(given, list) or len(given) != size or not all(isinstance(each, int | float) for each in given):
        raise ConfigError(f"{name}: STFTNorm.hann_win: expected {size} numbers; copy the file again")
    return np.array(given, np.float32)
