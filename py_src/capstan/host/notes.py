"""Keeps facts for later page loads as small texts in the browser's storage.

A note has a key (everything on which it depends) and a name. There is at most one note of each name. A note is returned
only for the key with which it was written; if anything has changed since, the fact is determined again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ..errors import StorageError
from ..fallback import fall_back
from . import current_host
from .storage_interface import Backing, short_hash

__all__ = ["Notes", "build", "notes_of_files"]

FOLDER, FOLDER_OF_FILES = "capstan-notes", "capstan-file-notes"
MOST = 128
"""The number of notes that are kept; one more removes all others."""
OLD = re.compile("[0-9a-f]{64}")
"""The first line of a note of Capstan 0.2.0 and before, which belongs to another build."""


class Notes:
    """The notes of this origin. Without storage nothing is noted, and a failure of the storage is counted as a step
    down.
    """

    def __init__(self, backing: Backing | None = None, folder: str = FOLDER) -> None:
        self._backing = backing
        self._folder = folder

    async def read(self, name: str, key: str) -> str | None:
        """Read the note of this name. The result is None if there is no note for this key. It is also None if the note
        is damaged, which is counted as a fallback.
        """
        try:
            backing = await self._open()
            text = await backing.read_text(file_name(name)) if backing else None
        except StorageError as error:
            self._without(error)
            return None
        if text is None:
            return None
        head, _, content = text.partition("\n")
        of_key = digest(key)
        if head == seal(name, of_key, content):
            return content
        if OLD.fullmatch(head) is None and head != seal(name, head.partition(" ")[0], content):
            what = f"the note {name!r} of an earlier page load"
            fall_back(what, "it is damaged", "it is determined again and rewritten")
        return None

    async def write(self, name: str, key: str, content: str) -> None:
        """Store a note. It replaces any other note of that name."""
        try:
            backing = await self._open()
            if backing is None:
                return
            file = file_name(name)
            others = [other for other in await backing.names() if other != file]
            if len(others) >= MOST:
                for other in others:
                    await backing.remove(other)
            await backing.write_text(file, f"{seal(name, digest(key), content)}\n{content}")
        except StorageError as error:
            self._without(error)

    async def has(self, name: str) -> bool:
        """Whether there is a note of that name with any key."""
        try:
            backing = await self._open()
            return backing is not None and file_name(name) in await backing.names()
        except StorageError as error:
            self._without(error)
            return False

    async def forget(self, names: Iterable[str] | None) -> int:
        """Remove the notes of these names (None means all), and return their size in bytes. Raises StorageError."""
        backing = await self._open()
        if backing is None:
            return 0
        there, freed = await backing.names(), 0
        wanted = set(there) if names is None else {file_name(name) for name in names}
        for file in wanted.intersection(there):
            freed += len((await backing.read_text(file) or "").encode())
            await backing.remove(file)
        return freed

    async def _open(self) -> Backing | None:
        if self._backing is None:
            self._backing = await current_host().backing(self._folder)
        return self._backing

    def _without(self, error: StorageError) -> None:
        fall_back("notes for the next page load", str(error), "it determines these facts again")


def notes_of_files() -> Notes:
    """The notes about stored data files, by URL. When capstan.WeightStore evicts a file, it also evicts the file's
    note.
    """
    return Notes(folder=FOLDER_OF_FILES)


def file_name(name: str) -> str:
    return short_hash(name) + ".note"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def seal(name: str, of_key: str, content: str) -> str:
    """The first line of a note: a digest of its key and a digest of the whole note. A note is valid only if both
    digests match.
    """
    return f"{of_key} {digest(json.dumps([name, of_key]) + content)}"


@cache
def build() -> str:
    """The digest of the wheel from which this Capstan comes; in keys it identifies Capstan's files."""
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is None:
        return "not from a wheel"
    return hashlib.sha256(Path(archive).read_bytes()).hexdigest()
