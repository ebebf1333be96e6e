"""SHA-256 digests of weights in model folders, so that pages verify what they download.

A model folder belongs to its user, so digests that are served with its files are kept in the cache folder. Only `models
shards` writes into the folder that it is given, and `dist` into the copy that it makes.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import TYPE_CHECKING

from .command_errors import CommandError
from .model_arguments import DIGESTS_SUFFIX, graphs_of
from .places import CACHE
from .terminal import say

if TYPE_CHECKING:
    from capstan.weights.manifest import Manifest

__all__ = ["SHARD_SIZE", "Digests", "complete_digests", "data_files", "write_digests"]

SHARD_SIZE = 4 << 20
WAIT_SECONDS = 20.0
"""A page gives up a request after 30 seconds without an answer."""
LARGE = 1 << 30
"""Hashing a file of this size takes seconds, so a message is printed first."""

Key = tuple[str, int, int, int]
"""A file's path, size and time stamp, and the size of its shards."""


def data_files(folder: Path) -> list[Path]:
    """The files that the graphs of a model folder name as their weights. Raises CommandError."""
    from capstan import graph
    from capstan.errors import CapstanError

    located: dict[Path, Path] = {}
    for file in graphs_of(folder):
        try:
            entries = graph.external_entries(graph.parse(file.read_bytes(), str(file)))
        except CapstanError as error:
            raise CommandError(str(error)) from error
        located |= {file.parent / entry.location: file for entry in entries}
    for data, file in located.items():
        if not data.is_file():
            raise CommandError(f"{data} does not exist, but {file.name} names it: copy it there")
    return sorted(located)


def digests_of(data: Path, shard_size: int) -> Manifest:
    """The digests of a whole file."""
    from capstan.weights.manifest import Manifest

    return Manifest.of(pieces(data, shard_size), shard_size)


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """A file's bytes, `size` at a time."""
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece


def beside(data: Path) -> Path:
    """The path of a data file's digests in its folder."""
    return data.with_name(data.name + DIGESTS_SUFFIX)


def own_digests(data: Path) -> Manifest | None:
    """The digests in the folder; None if it has none, or, with a message, if they cannot be read."""
    from capstan.errors import ModelFileError
    from capstan.weights.manifest import parse_manifest

    path = beside(data)
    try:
        return parse_manifest(path.read_bytes(), str(path)) if path.is_file() else None
    except ModelFileError as error:
        say(str(error))
        return None


def write_digests(data: Path, shard_size: int) -> Manifest:
    """Write NAME.shards.json beside a data file."""
    manifest = digests_of(data, shard_size)
    beside(data).write_text(manifest.serialize())
    return manifest


def complete_digests(folder: Path) -> list[Path]:
    """Write the digests that a model folder lacks, and replace digests of other data. Returns the written files."""
    written = []
    for data in data_files(folder):
        own = own_digests(data)
        if own != digests_of(data, own.shard_size if own else SHARD_SIZE):
            write_digests(data, own.shard_size if own else SHARD_SIZE)
            written.append(beside(data))
    return written


class Digests:
    """The server's answer for NAME.shards.json of a model folder: the folder's own file if it belongs to these data,
    else digests that are computed once and kept in `cache`, by path, size and time stamp.
    """

    def __init__(self, cache: Path = CACHE / "digests", wait: float = WAIT_SECONDS) -> None:
        self._cache = cache
        self._wait = wait
        self._lock = threading.Lock()
        self._under_way: dict[Key, Future[Manifest]] = {}
        self._reported: set[str] = set()
        self.hashed: list[Path] = []
        """The files that were read through."""

    def text(self, data: Path) -> bytes | None:
        """The text of a data file's NAME.shards.json; None, with a message, if it is not ready in time."""
        own = own_digests(data)
        manifest = self._computed(data, own.shard_size if own else SHARD_SIZE)
        if own is None or manifest is None:
            found = own or manifest
        elif own == manifest:
            found = own
        elif data.stat().st_mtime_ns > beside(data).stat().st_mtime_ns:
            self._say(
                f"{beside(data)} is older than {data.name}, which has changed: digests that were made again are served "
                f"in its place; `models shards {data.parent}` writes them there"
            )
            found = manifest
        else:
            self._say(
                f"{data} is not what {beside(data).name} says, which is newer: the page will refuse it; copy it again, "
                f"or run `models shards {data.parent}` if it is right"
            )
            found = own
        return found.serialize().encode() if found else None

    def _computed(self, data: Path, shard_size: int) -> Manifest | None:
        stat = data.stat()
        key = (str(data.resolve()), stat.st_size, stat.st_mtime_ns, shard_size)
        known = self._kept(key)
        if known is not None:
            return known
        if stat.st_size >= LARGE:
            self._say(
                f"{data.name}: hashing {stat.st_size / 1e9:.1f} GB, once, so that the page can verify its download"
            )
        try:
            return self._begun(data, key).result(self._wait)
        except NotYetError:
            self._say(f"{data.name}: its digests were not computed within {self._wait:g} s; it is sent without")
        except OSError as error:
            self._say(f"{data.name}: no digests ({error.strerror}); it is sent without")
        return None

    def _begun(self, data: Path, key: Key) -> Future[Manifest]:
        """The computation, in a daemon thread; all requests for the same digests share it."""
        with self._lock:
            if key not in self._under_way:
                found: Future[Manifest] = Future()
                self._under_way[key] = found
                threading.Thread(target=self._settle, args=(found, data, key), daemon=True).start()
            return self._under_way[key]

    def _settle(self, found: Future[Manifest], data: Path, key: Key) -> None:
        try:
            found.set_result(self._compute(data, key))
        except BaseException as error:
            found.set_exception(error)

    def _compute(self, data: Path, key: Key) -> Manifest:
        self.hashed.append(data)
        manifest = digests_of(data, key[3])
        if manifest.size == key[1] and data.stat().st_mtime_ns == key[2]:
            self._keep(key, manifest)
        return manifest

    def _place(self, key: Key) -> Path:
        return self._cache / (hashlib.sha256(key[0].encode()).hexdigest()[:32] + ".json")

    def _kept(self, key: Key) -> Manifest | None:
        from capstan.errors import ModelFileError
        from capstan.weights.manifest import parse_manifest

        try:
            kept = json.loads(self._place(key).read_text())
            same = kept["key"] == list(key)
            return parse_manifest(json.dumps(kept["manifest"]), key[0]) if same else None
        except (OSError, ValueError, KeyError, TypeError, ModelFileError):
            return None

    def _keep(self, key: Key, manifest: Manifest) -> None:
        place = self._place(key)
        new = place.with_suffix(f".{os.getpid()}")
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps({"key": key, "manifest": manifest.as_json()}))
            new.replace(place)
        except OSError as error:
            self._say(f"{self._cache}: {error.strerror}; digests are computed again the next time")

    def _say(self, text: str) -> None:
        """Print a message, unless it was printed before."""
        if text not in self._reported:
            self._reported.add(text)
            say(text)
