"""Resamples sound to another rate. A lower rate is made as in onnxruntime-extensions' AudioDecoder: a low pass, then
sums over a Kaiser window around each sample. That decoder cannot make a higher rate, so a higher rate is made as in
torchaudio's `resample`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["downsampled", "upsampled"]

Samples = np.ndarray[Any, np.dtype[np.float32]]
POLES = 4
BETA = 6.0
FADED = 1e-12
"""The impulse response ends where it has faded to this share of its largest value."""
CROSSINGS, ROLLOFF = 6, 0.99
"""Zeros of the interpolating wave on each side, and its frequency as a share of the highest one."""
AT_ONCE = 1 << 16
"""The number of samples that are computed at once."""


def downsampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Samples at the `wanted` rate, from samples at a higher `rate`: float32 [samples]."""
    return interpolated(low_passed(samples, 0.5 * wanted / rate), rate, wanted)


def upsampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Samples at the `wanted` rate, from samples at a lower `rate`: sums of the nearest ones, weighted by sin(x)/x of
    the distance under a Hann window.
    """
    count = math.ceil(len(samples) * wanted / rate)
    offsets = np.arange(-CROSSINGS - 1, CROSSINGS + 2)
    padded = np.pad(samples, CROSSINGS + 2)
    found = np.empty(count, np.float32)
    for start in range(0, count, AT_ONCE):
        places = np.arange(start, min(start + AT_ONCE, count)) * (rate / wanted)
        near = places.astype(np.int64)[:, None] + offsets
        distances = np.clip((near - places[:, None]) * ROLLOFF, -CROSSINGS, CROSSINGS)
        weights = ROLLOFF * np.sinc(distances) * np.cos(np.pi * distances / (2 * CROSSINGS)) ** 2
        found[start : start + AT_ONCE] = (padded[near + CROSSINGS + 2] * weights).sum(axis=1)
    return found


def low_passed(samples: Samples, cutoff: float) -> Samples:
    """Samples without the frequencies above `cutoff`, which is a share of their rate."""
    answer = response(cutoff)
    size = 1 << (len(samples) + len(answer)).bit_length()
    spectrum = np.fft.rfft(samples.astype(np.float64), size) * np.fft.rfft(answer, size)
    return np.fft.irfft(spectrum, size)[: len(samples)].astype(np.float32)


def response(cutoff: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The filter's impulse response, up to where it has faded."""
    forward, back = coefficients(cutoff)
    found: list[float] = []
    largest = 0.0
    while True:
        place = len(found)
        value = forward[place] if place <= POLES else 0.0
        value -= sum(back[step] * found[place - step] for step in range(1, POLES + 1) if step <= place)
        found.append(value)
        largest = max(largest, abs(value))
        if place > POLES and all(abs(each) < FADED * largest for each in found[-POLES:]):
            return np.array(found)


def coefficients(cutoff: float) -> tuple[list[float], list[float]]:
    """The coefficients of a low pass, for samples and for earlier results (S. Smith, The Scientist and Engineer's Guide
    to Digital Signal Processing, chapter 33)."""
    forward, back = np.array([1.0]), np.array([1.0])
    for pole in range(1, POLES // 2 + 1):
        angle = math.pi / (2 * POLES) + (pole - 1) * math.pi / POLES
        real, imaginary = -math.cos(angle), math.sin(angle)
        warp = 2 * math.tan(0.5)
        size = (real * real + imaginary * imaginary) * warp * warp
        scale = 4 - 4 * real * warp + size
        x0, x1, x2 = warp * warp / scale, 2 * warp * warp / scale, warp * warp / scale
        y1, y2 = (8 - 2 * size) / scale, (-4 - 4 * real * warp - size) / scale
        turn = math.pi * cutoff
        k = math.sin(0.5 - turn) / math.sin(0.5 + turn)
        norm = 1 + y1 * k - y2 * k * k
        first = (x0 - x1 * k + x2 * k * k) / norm
        second = (-2 * x0 * k + x1 + x1 * k * k - 2 * x2 * k) / norm
        third = (x0 * k * k - x1 * k + x2) / norm
        forward = np.convolve(forward, [first, second, third])
        back = np.convolve(back, [1.0, -(2 * k + y1 + y1 * k * k - 2 * y2 * k) / norm, -(-k * k - y1 * k + y2) / norm])
    gain = forward.sum() / back.sum()
    return list(forward / gain), list(back)


def interpolated(samples: Samples, rate: int, wanted: int) -> Samples:
    """Each result is the sum of the samples around its place, weighted by a window and by sin(x)/x of the distance. The
    native package computes the same steps in single precision."""
    factor = np.float32(np.float32(wanted) / np.float32(rate))
    count = int(np.ceil(np.float32(len(samples)) * factor))
    reach = math.ceil(BETA / (2 * float(factor)))
    places = np.arange(count, dtype=np.float32) / factor
    centres = places.astype(np.int64)
    first = np.maximum(0, centres - reach)
    last = np.minimum(len(samples) - 1, centres + reach)
    found = np.zeros(count, np.float32)
    whole = last - first == 2 * reach
    offsets = np.arange(2 * reach + 1)
    window = kaiser(2 * reach + 1)
    inner = np.flatnonzero(whole)
    for start in range(0, len(inner), AT_ONCE):
        chosen = inner[start : start + AT_ONCE]
        near = first[chosen, None] + offsets
        found[chosen] = weighted(samples[near], near, places[chosen, None], window)
    for place in np.flatnonzero(~whole & (last >= first)):
        near = np.arange(first[place], last[place] + 1)
        found[place] = weighted(samples[near], near, places[place], kaiser(len(near)))
    return found


def weighted(samples: Samples, near: Any, place: Any, window: Any) -> Any:
    distances = np.abs(near.astype(np.float32) - place).astype(np.float64)
    return (samples * (window * np.sinc(np.where(distances < 1e-6, 0, distances)))).sum(axis=-1)


def kaiser(length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.ones(1) if length == 1 else np.kaiser(length, BETA)
