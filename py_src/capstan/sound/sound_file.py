"""Reads sound files. WAV files are decoded here; libsndfile decodes FLAC, MP3, Ogg and others if the package soundfile
is installed.
"""

from __future__ import annotations

import io
import sys
from typing import Any, Protocol

import numpy as np

from ..errors import SoundError
from .wave_file import REMEDY, Unread, require_finite, too_long
from .wave_file import opened as opened_wave

__all__ = ["SoundFile", "opened"]

Samples = np.ndarray[Any, np.dtype[np.float32]]


class SoundFile(Protocol):
    """A file that is decoded in parts."""

    @property
    def rate(self) -> int:
        """Frames a second."""

    @property
    def frames(self) -> int:
        """The number of samples of each channel."""

    def samples(self, start: int, stop: int) -> Samples:
        """The frames from `start` to before `stop`: from -1 to 1, float32 [frames, channels]. Raises SoundError for
        NaN and infinity."""


class LibraryFile:
    """A file that libsndfile decodes."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        self.rate, self.frames = int(file.samplerate), int(file.frames)

    def samples(self, start: int, stop: int) -> Samples:
        """See SoundFile."""
        wanted = min(stop, self.frames) - start
        try:
            self._file.seek(start)
            found: Samples = self._file.read(wanted, dtype="float32", always_2d=True)
        except RuntimeError as error:
            raise SoundError(f"{self._name} is damaged or truncated ({error}); {REMEDY}") from error
        if len(found) < wanted:
            raise SoundError(f"{self._name} is truncated: it has {start + len(found)} of {self.frames} samples")
        require_finite(found, self._name, start)
        return found


def opened(data: bytes, name: str, longest: float) -> SoundFile:
    """A sound file of at most `longest` seconds; messages call it `name`. Raises SoundError."""
    try:
        return opened_wave(data, name, longest)
    except Unread as unread:
        kind = str(unread)
    if sys.platform == "emscripten" or not data:
        raise SoundError(f"{kind}; {REMEDY}")
    try:
        import soundfile  # noqa: PLC0415  (in the extra `reference`)
    except (ImportError, OSError) as error:
        raise SoundError(
            f"{kind}; soundfile, which reads many formats, is not installed ({error}): `pip install soundfile`, or "
            f"{REMEDY}"
        ) from error
    try:
        found = LibraryFile(soundfile.SoundFile(io.BytesIO(data)), name)
    except RuntimeError as error:
        raise SoundError(f"{kind}, which soundfile does not read; {REMEDY}") from error
    if found.frames > longest * found.rate:
        raise too_long(name, found.frames / found.rate, longest)
    return found
