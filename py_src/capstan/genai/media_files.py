"""Reads files of sound and pictures, which a processor turns into a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from ..errors import CapstanError, ModelFileError, PictureError, SoundError
from ..host.disk_file import read_file

__all__ = ["Audios", "Images"]


class MediaFiles:
    """The contents of files, and their names in messages."""

    _kind: ClassVar[str]
    _error: ClassVar[type[CapstanError]]
    _remedy: ClassVar[str]
    _most: ClassVar[int]
    """The limit of a file's bytes."""
    _files: tuple[bytes, ...]
    _names: tuple[str, ...]

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")

    @classmethod
    def _of(cls, files: Sequence[bytes], names: Sequence[str]) -> Self:
        if not files:
            raise cls._error(f"no files of {cls._kind} were given; give at least one")
        made = cls.__new__(cls)
        made._files, made._names = tuple(files), tuple(names)
        return made

    @classmethod
    def _open(cls, paths: Sequence[str]) -> Self:
        try:
            return cls._of([read_file(Path(path), cls._most) for path in paths], paths)
        except ModelFileError as error:
            raise cls._error(str(error)) from error

    @classmethod
    def _open_bytes(cls, contents: Sequence[bytes]) -> Self:
        names = [f"{cls._kind} {place}" for place in range(len(contents))]
        for name, data in zip(names, contents, strict=True):
            if not len(data):
                raise cls._error(f"{name} has no bytes; {cls._remedy}")
        return cls._of([bytes(data) for data in contents], names)


class Audios(MediaFiles):
    """Sound files: WAV, and on CPython the formats of the package soundfile."""

    _kind, _error, _remedy = "sound", SoundError, "give the content of a sound file"
    # 30 seconds of 8 channels at 192 kHz have 368 MB as 64-bit floats.
    _most = 1 << 29

    @staticmethod
    def open(*paths: str) -> Audios:
        """Sound files at these paths of the interpreter's file system. Raises SoundError."""
        return Audios._open(paths)

    @staticmethod
    def open_bytes(*contents: bytes) -> Audios:
        """Sound files with these contents. Raises SoundError for an empty file."""
        return Audios._open_bytes(contents)


class Images(MediaFiles):
    """Picture files: PNG, JPEG, WebP, BMP and GIF."""

    _kind, _error, _remedy = "picture", PictureError, "give the content of a PNG or JPEG file"
    _most = 1 << 28

    @staticmethod
    def open(*paths: str) -> Images:
        """Picture files at these paths of the interpreter's file system. Raises PictureError."""
        return Images._open(paths)

    @staticmethod
    def open_bytes(*contents: bytes) -> Images:
        """Picture files with these contents. Raises PictureError for an empty file."""
        return Images._open_bytes(contents)
