"""Turns sound files into the features that a speech model takes, by the steps of audio_processor_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, SoundError, UnsupportedModelError
from ..model_files.config_section import parse_object
from .resampling import downsampled
from .spectrum import hann, log_mel, mel_filters, power
from .wave_file import decoded, too_long

__all__ = ["SoundProcessor"]

Array = np.ndarray[Any, np.dtype[np.float32]]
RATE = 16_000
"""The sample rate of the features, in Hz."""
STEPS = ("AudioDecoder", "STFTNorm", "LogMelSpectrum")
KNOWN = {
    "AudioDecoder": {"target_sample_rate": RATE, "downsampling_rate": RATE, "stereo_to_mono": 1},
    "STFTNorm": {},
    "LogMelSpectrum": {"feature_first": 1, "no_padding": 0},
}
"""The only supported values of fields that change a step."""
SIZES = {"STFTNorm": ("n_fft", "hop_length", "frame_length"), "LogMelSpectrum": ("n_fft", "hop_length", "n_mel")}
MOST = 1 << 20
LONGEST_SECONDS = 3600


@dataclass(frozen=True)
class SoundProcessor:
    """The steps of one model: a Fourier transform over `size` samples every `hop`, in `bands` bands, for sounds of at
    most `seconds`."""

    size: int
    hop: int
    bands: int
    seconds: int
    window: Array

    @classmethod
    def of_config(cls, data: str | bytes, name: str) -> SoundProcessor:
        """The processor of a file's content; `name` is what messages call it. Raises ConfigError, UnsupportedModelError
        for steps that are not computed."""
        steps = steps_of(parse_object(data, name), name)
        if tuple(kind for kind, _ in steps) != STEPS:
            kinds = ", ".join(kind for kind, _ in steps)
            raise UnsupportedModelError(f"{name}: its steps are {kinds}; the computed ones are {', '.join(STEPS)}")
        for kind, fields in steps:
            for field, value in KNOWN[kind].items():
                if fields.get(field, value) != value:
                    raise UnsupportedModelError(
                        f"{name}: {kind}.{field} is {fields[field]!r}; only {value} is computed"
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

    @property
    def frames(self) -> int:
        """Columns of the features of a sound."""
        return self.seconds * RATE // self.hop

    def features(self, files: Sequence[bytes], names: Sequence[str]) -> Array:
        """The features of WAV files, float32 [files, bands, frames]; `names` are what messages call them. Raises
        SoundError."""
        filters = mel_filters(self.size, self.bands, RATE)
        made = [
            log_mel(power(self._samples(data, name), self.size, self.hop, self.window), filters, self.frames)
            for data, name in zip(files, names, strict=True)
        ]
        return np.stack(made)

    def _samples(self, data: bytes, name: str) -> Array:
        """The samples of one channel at RATE."""
        sound = decoded(data, name, self.seconds)
        if not len(sound.samples):
            raise SoundError(f"{name} has no samples; give a sound that is longer than 0 seconds")
        if not np.isfinite(sound.samples).all():
            place = int(np.flatnonzero(~np.isfinite(sound.samples).all(axis=1))[0])
            raise SoundError(f"{name}: sample {place} is NaN or infinite; write the file again")
        if sound.rate < RATE:
            raise SoundError(
                f"{name} has {sound.rate} samples a second, at least {RATE} are needed; resample it, as by "
                f"`ffmpeg -i FILE -ar {RATE} sound.wav`"
            )
        samples: Array = sound.samples.mean(axis=1, dtype=np.float32)
        if sound.rate > RATE:
            samples = downsampled(samples, sound.rate, RATE)
        if len(samples) < self.hop:
            raise SoundError(f"{name} has {len(samples)} samples at {RATE} a second; at least {self.hop} are needed")
        if len(samples) > self.seconds * RATE:
            raise too_long(name, len(samples) / RATE, self.seconds)
        return samples


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
            raise UnsupportedModelError(f"{name}: STFTNorm.win_fn is {fields['win_fn']!r}; only 'hann' is computed")
        return hann(size)
    if not isinstance(given, list) or len(given) != size or not all(isinstance(each, int | float) for each in given):
        raise ConfigError(f"{name}: STFTNorm.hann_win: expected {size} numbers; copy the file again")
    return np.array(given, np.float32)
