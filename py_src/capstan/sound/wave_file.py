"""Decodes WAV files: integers of 8 to 32 bits and floats, of any number of channels and any rate."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SoundError

__all__ = ["REMEDY", "Unread", "WaveFile", "opened", "require_finite", "too_long"]

INTEGERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE
UNKNOWN = 0xFFFFFFFF
"""The announced length of a file that was written as a stream."""
OTHERS = {
    (0, b"fLaC"): "a FLAC file",
    (0, b"OggS"): "an Ogg file",
    (0, b"ID3"): "an MP3 file",
    (0, b"RF64"): "a WAV file of 64 bits",
    (0, b"\x1aE\xdf\xa3"): "a WebM file",
    (4, b"ftyp"): "an M4A or MP4 file",
}
"""Files by the bytes at a place."""
OTHER_CODINGS = {
    2: "ADPCM",
    6: "A-law",
    7: "mu-law",
    0x11: "ADPCM",
    0x55: "MP3",
}
REMEDY = "give a WAV file; `ffmpeg -i FILE -ac 1 -ar 16000 sound.wav` makes one"


class Unread(Exception):  # noqa: N818
    """The file has another format; the message names the format."""


@dataclass(frozen=True)
class Format:
    """The contents of a file's `fmt ` chunk."""

    coding: int
    channels: int
    rate: int
    bits: int

    @property
    def width(self) -> int:
        """The bytes of a frame."""
        return self.bits // 8 * self.channels


@dataclass(frozen=True)
class WaveFile:
    """The samples of a WAV file, decoded in parts."""

    data: memoryview
    form: Format
    name: str

    @property
    def rate(self) -> int:
        """Frames a second."""
        return self.form.rate

    @property
    def frames(self) -> int:
        """The number of samples of each channel."""
        return len(self.data) // self.form.width

    def samples(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The frames from `start` to before `stop`: from -1 to 1, float32 [frames, channels]. Raises SoundError for
        NaN and infinity."""
        width = self.form.width
        values = CODINGS[self.form.coding, self.form.bits](self.data[start * width : stop * width])
        found = values.astype(np.float32, copy=False).reshape(-1, self.form.channels)
        require_finite(found, self.name, start)
        return found


def opened(data: bytes, name: str, longest: float) -> WaveFile:
    """A WAV file of at most `longest` seconds; messages call it `name`. Raises SoundError, Unread."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        kind = next((what for (place, start), what in OTHERS.items() if data.startswith(start, place)), "")
        if not kind and len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
            kind = "an MP3 file"
        raise Unread(f"{name} is {kind}" if kind else f"{name} has {len(data)} bytes and is not a WAV file")
    form: Format | None = None
    for chunk, start, length in chunks(data):
        if chunk == b"fmt ":
            form = format_of(data[start : start + length], name)
        elif chunk == b"data":
            if form is None:
                raise SoundError(f"{name}: its samples come before its format; {REMEDY}")
            there = len(data) - start
            seconds = (there if length == UNKNOWN else length) / (form.width * form.rate)
            if seconds > longest:
                raise too_long(name, seconds, longest)
            if there < length != UNKNOWN:
                raise SoundError(f"{name} is truncated: it announces {length} bytes of samples and has {there}")
            samples = memoryview(data)[start : start + length]
            if rest := len(samples) % form.width:
                raise SoundError(f"{name} is truncated: its last frame has {rest} of {form.width} bytes")
            return WaveFile(samples, form, name)
    raise SoundError(f"{name} has no samples; {REMEDY}")


def require_finite(samples: np.ndarray[Any, np.dtype[np.float32]], name: str, start: int = 0) -> None:
    """Raise SoundError for a frame with NaN or infinity. The first of these frames is frame `start` of the sound."""
    finite = np.isfinite(samples)
    if not finite.all():
        place = start + int(np.argwhere(~finite)[0][0])
        raise SoundError(f"{name}: sample {place} is NaN or infinite; write the file again")


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name, the start and the announced length of each chunk of a file."""
    start = 12
    while start + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, start)
        yield kind, start + 8, length
        start += 8 + length + length % 2


def format_of(chunk: bytes, name: str) -> Format:
    if len(chunk) < 16:
        raise SoundError(f"{name}: its format has {len(chunk)} bytes, expected at least 16; {REMEDY}")
    coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if coding == EXTENSIBLE and len(chunk) >= 26:
        [coding] = struct.unpack_from("<H", chunk, 24)
    if not channels or not rate:
        raise SoundError(f"{name} has {channels} channels at {rate} samples a second; {REMEDY}")
    if (coding, bits) not in CODINGS:
        kind = OTHER_CODINGS.get(coding, f"coding {coding}")
        raise Unread(f"{name} is a WAV file with samples of {bits} bits in {kind}")
    return Format(coding, channels, rate, bits)


def too_long(name: str, seconds: float, longest: float) -> SoundError:
    """The error for a sound that is too long for the model."""
    return SoundError(
        f"{name} is {seconds:.1f} seconds long; the model hears at most {longest:g}: give parts of at most that length"
    )


def from_24_bits(data: memoryview) -> np.ndarray[Any, Any]:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0] / np.float64(1 << 31)


CODINGS: dict[tuple[int, int], Callable[[memoryview], np.ndarray[Any, Any]]] = {
    (INTEGERS, 8): lambda data: np.frombuffer(data, np.uint8) * np.float32(2 / 255) - np.float32(1),
    (INTEGERS, 16): lambda data: np.frombuffer(data, "<i2") * np.float32(1 / (1 << 15)),
    (INTEGERS, 24): from_24_bits,
    (INTEGERS, 32): lambda data: np.frombuffer(data, "<i4") / np.float64(1 << 31),
    (FLOATS, 32): lambda data: np.frombuffer(data, "<f4"),
    (FLOATS, 64): lambda data: np.frombuffer(data, "<f8"),
}
"""The readers of samples by coding and number of bits, like dr_wav, which the native package uses."""
