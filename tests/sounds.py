"""Sounds that tests make: tones that glide, and the WAV files of any samples."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

__all__ = ["FLOATS", "INTEGERS", "glide", "wave_file"]

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
