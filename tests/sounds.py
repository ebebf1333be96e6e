"""Sounds that tests make: tones that glide, and the WAV files of any samples."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["FLOATS", "INTEGERS", "glide", "quiet", "voice", "wave_file"]

INTEGERS, FLOATS = 1, 3
"""The codings of samples in a WAV file."""


def glide(seconds: float, start: float = 200.0, end: float = 3000.0, rate: int = 16_000) -> list[float]:
    """A tone from one frequency to another, which swells three times a second, over a quieter one at 440 Hz."""
    count = round(seconds * rate)
    found = []
    for place in range(count):
        time = place / rate
        angle = 2 * math.pi * (start * time + (end - start) * time * time / (2 * seconds))
        swell = 0.6 - 0.4 * math.cos(6 * math.pi * time)
        found.append(0.5 * swell * math.sin(angle) + 0.2 * math.sin(2 * math.pi * 440 * time))
    return found


VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""Formants of American English (Peterson and Barney, 1952)."""


def voice(seconds: float) -> Any:
    """Four vowels a second, which a detector takes for speech: float32 at 16,000 Hz."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    pitch = 120 + 20 * np.sin(4.4 * time) + 10 * np.sin(13 * time)
    phase, syllable = np.cumsum(pitch) / 16_000, 4 * time
    formants = np.array(VOWELS)[syllable.astype(int) % len(VOWELS)]
    found = np.zeros(len(time))
    for harmonic in range(1, 40):
        strength = 1 / (1 + ((harmonic * pitch[:, None] - formants) / (90, 110, 170)) ** 2) @ (1, 0.5, 0.25)
        found += strength / harmonic**0.3 * np.sin(2 * np.pi * harmonic * phase)
    found *= 0.15 + 0.85 * np.sin(np.pi * (syllable % 1)) ** 0.7
    return (0.4 * found / np.abs(found).max()).astype(np.float32)


def quiet(seconds: float) -> Any:
    """The noise of a room: float32 at 16,000 Hz."""
    return np.random.default_rng(1).normal(0, 0.001, round(seconds * 16_000)).astype(np.float32)


def wave_file(
    samples: Sequence[float], rate: int = 16_000, channels: int = 1, bits: int = 16, coding: int = 1
) -> bytes:
    """A WAV file; of several channels the samples of each frame are beside each other."""
    if coding == FLOATS:
        data = struct.pack(f"<{len(samples)}{'f' if bits == 32 else 'd'}", *samples)
    elif bits == 8:
        data = bytes(round(127.5 + 127.5 * sample) for sample in samples)
    else:
        largest = (1 << (bits - 1)) - 1
        data = b"".join(round(largest * each).to_bytes(bits // 8, "little", signed=True) for each in samples)
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", coding, channels, rate, rate * width, width, bits)
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data
