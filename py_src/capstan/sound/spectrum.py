"""Computes spectra of sound in single precision, like onnxruntime-extensions' STFTNorm and LogMelSpectrum."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["LEAST_POWER", "hann", "log_mel", "mel_filters", "scaled"]

Array = np.ndarray[Any, np.dtype[np.float32]]
HIGHEST_MEL = 45.245640471924965
"""Half of 16 kHz on Slaney's scale."""
LEAST_POWER = 1e-10
RANGE = 8.0
"""Values more than this many powers of ten below the largest are raised to that bound."""


def log_mel(samples: Array, hop: int, window: Array, filters: Array) -> Array:
    """The logarithms of powers by bands: float32 [bands, frames]. Each frame has the window's number of samples and
    begins `hop` samples after the previous one.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, len(window))[::hop]
    spectra = np.fft.rfft(frames * window, axis=-1)
    powers = (spectra.real**2 + spectra.imag**2).astype(np.float32)
    found = np.zeros((len(filters), len(powers)), np.float32)
    for band, shares in zip(found, filters, strict=True):
        # A triangle covers a few frequencies, and numpy has no fast products in a page.
        [inside] = np.nonzero(shares)
        if len(inside):
            covered = slice(inside[0], inside[-1] + 1)
            np.matmul(powers[:, covered], shares[covered], out=band)
    logs: Array = np.log10(np.maximum(found, np.float32(LEAST_POWER)))
    return logs


def scaled(logs: Array, loudest: np.float32) -> Array:
    """Logarithms scaled for Whisper; those far below the `loudest` of the sound are raised."""
    return (np.maximum(logs, loudest - np.float32(RANGE)) + np.float32(4)) / np.float32(4)


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
