"""Spectra of sound, as onnxruntime-extensions' STFTNorm and LogMelSpectrum compute them, in single precision."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["hann", "log_mel", "mel_filters", "power"]

Array = np.ndarray[Any, np.dtype[np.float32]]
HIGHEST_MEL = 45.245640471924965
"""Half of 16 kHz on Slaney's scale."""
LEAST_POWER = 1e-10
RANGE = 8.0
"""Values more than this many powers of ten below the largest are raised to that bound."""


def power(samples: Array, size: int, hop: int, window: Array) -> Array:
    """The squared magnitudes of Fourier transforms over `size` samples, each `hop` samples after the one before:
    float32 [size / 2 + 1, frames]. The first frame is centred on the first sample; silence pads both ends."""
    half = size // 2
    silent = np.pad(samples, half)
    frames = np.lib.stride_tricks.sliding_window_view(silent, size)[::hop]
    found = np.fft.rfft(frames * window, axis=-1)
    return (found.real**2 + found.imag**2).astype(np.float32).T


def log_mel(powers: Array, filters: Array, frames: int) -> Array:
    """The logarithms of powers by bands, scaled as Whisper takes them: float32 [bands, frames], with silence
    after the sound. As in the native package, the last column of `powers` is left out."""
    mel = np.maximum(filters @ powers[:, :-1], np.float32(LEAST_POWER))
    logs = np.log10(mel)
    least = np.float32(logs.max() - np.float32(RANGE))
    found = np.full((len(filters), frames), (least + np.float32(4)) / np.float32(4), np.float32)
    found[:, : logs.shape[1]] = (np.maximum(logs, least) + np.float32(4)) / np.float32(4)
    return found


@lru_cache(maxsize=4)
def mel_filters(size: int, bands: int, rate: int) -> Array:
    """The share of each frequency in each band, triangles on Slaney's scale with equal areas: float32
    [bands, size / 2 + 1]."""
    frequencies = (np.arange(size // 2 + 1) * rate / np.float32(size)).astype(np.float32)
    mels = (np.arange(bands + 2) * np.float32(HIGHEST_MEL) / np.float32(bands + 1)).astype(np.float32)
    corner, step = np.float32(1000), np.float32(200 / 3)
    knee = np.float32(corner / step)
    ratio = np.float32(math.log(6.4) / 27)
    edges = np.where(mels >= knee, corner * np.exp(ratio * (mels - knee)), step * mels).astype(np.float32)
    widths = np.diff(edges)
    slopes = edges[:, None] - frequencies[None]
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    triangles = np.maximum(np.float32(0), np.minimum(rising, falling))
    found: Array = (triangles * (np.float32(2) / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)
    return found


def hann(length: int) -> Array:
    """The Hann window, for a configuration that has no window of its own."""
    return (np.sin(np.pi * np.arange(length) / length) ** 2).astype(np.float32)
