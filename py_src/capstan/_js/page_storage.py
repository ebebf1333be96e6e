"""Implements the interfaces of capstan.host.storage_interface in a page, by calls to web/src/worker/storage: sources of
weights, loading and storage.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import StorageError
from ..fallback import fall_back
from ..host.retrying import retried
from ..host.storage_interface import Backing, DataFile, LoadPlan, Outcome, Sink, SourceIdentity
from ..model_files.hub import HubRepository
from .js_errors import or_undone, storage_errors, typed_errors
from .own_host import capstan_host

__all__ = [
    "JsBacking",
    "JsMemory",
    "JsSink",
    "JsSource",
    "absolute",
    "adopt",
    "assumed_source",
    "backing",
    "cross_origin_bytes",
    "forget",
    "keep_folder",
    "keep_repository",
    "listing",
    "memory",
    "open_repository",
    "open_source",
    "stall_after",
    "warn_damaged",
]


async def adopt(folder: Any) -> str:
    """Register a FileSystemDirectoryHandle, a File or an array of these with the page. Returns a name as a URL that
    ends in a slash.
    """
    with storage_errors():
        return str(await capstan_host.storage.adopt(folder))


async def open_repository(repository: HubRepository, keep: bool) -> str:
    """Find the address of a repository's files at one commit. With `keep` this is the commit of the last load, if there
    was a last load; otherwise it is the present commit of the revision.
    """
    asked = (repository.name, repository.hub, repository.revision, keep, repository.token or None)

    async def opened() -> str:
        with storage_errors():
            return str(await capstan_host.storage.openRepository(*asked))

    return await retried(opened)


async def keep_repository(folder: str) -> None:
    """Note the commit in this folder's address: the next load of the repository uses it without a request to the hub.
    Does nothing for a folder that is not of a hub.
    """
    await capstan_host.storage.keepRepository(folder)


def warn_damaged() -> None:
    """Count a fallback for each kept small file that was found damaged since the last call."""
    for address in json.loads(capstan_host.storage.takeDamaged()):
        fall_back(f"the kept copy of {address}", "it is damaged", "it was requested again")


def keep_folder(folder: str) -> None:
    """Keep the small files of a server's folder from now on, for loads when the server is unreachable."""
    capstan_host.storage.keepFolder(folder)


async def forget(addresses: Sequence[str] | None) -> int:
    """Remove the kept files of repositories and folders; see capstan.host.Host.forget."""
    which = None if addresses is None else json.dumps(addresses)
    await capstan_host.storage.forgetFolders(which)
    return int(await capstan_host.storage.forgetRepositories(which))


async def listing(folder: str) -> dict[str, int | None] | None:
    """The sizes of the files of a picked folder or a hub's repository, by name; an unknown size is None. The result is
    None if the files cannot be listed.
    """
    with storage_errors():
        text = await capstan_host.storage.listing(folder)
    if not isinstance(text, str):
        return None
    sizes: dict[str, int | None] = json.loads(text)
    return sizes


def absolute(url: str) -> str:
    """Convert an address to the form that all pages of the origin share."""
    return str(capstan_host.storage.absolute(url))


async def backing(folder: str) -> JsBacking | None:
    """Open this browser's file storage for one folder. Returns None without storage. If the browser has a private file
    system but denies access to it, that is a fallback.
    """
    refusals: list[str] = []
    with storage_errors():
        found = await capstan_host.storage.openBacking(folder, refusals.append)
    for reason in refusals:
        instead = "the Cache API is used instead" if found else "nothing is kept for the next page load"
        fall_back("the browser's private file system", reason, instead)
    return JsBacking(found) if found else None


async def open_source(url: str, keep: bool) -> JsSource:
    """Open a URL, or a file of a picked folder, as a source of weights. The server is asked for the file's identity."""

    async def opened() -> JsSource:
        with storage_errors():
            return JsSource(await capstan_host.storage.openSource(url, keep))

    return await or_undone(opened(), JsSource.close)


def assumed_source(identity: SourceIdentity, keep: bool) -> JsSource:
    """Open a source whose server is unreachable. The file is assumed to be unchanged."""
    return JsSource(capstan_host.storage.assumedSource(json.dumps(identity.as_json()), keep))


def memory(size: int, start: int = 0) -> JsMemory:
    """Reserve memory for bytes of a file, outside of Python's heap."""
    return JsMemory(capstan_host.storage.memory(size, start))


class JsSink:
    """Implements capstan.host.storage_interface.Sink by calls to a WeightUpload (web/src/worker/gpu/weights.ts) or a
    Memory.
    """

    def __init__(self, sink: Any) -> None:
        self.js = sink

    async def finish(self) -> None:
        with typed_errors():
            await self.js.finish()

    def close(self) -> None:
        self.js.close()


class JsMemory(JsSink):
    """Implements capstan.host.storage_interface.MemorySink by calls to web/src/worker/storage/memory.ts."""

    def to_bytes(self) -> bytes:
        with typed_errors():
            return bytes(self.js.bytes.to_bytes())


CROSS_ORIGIN = "Cross-Origin Storage"
offers: set[asyncio.Task[None]] = set()
"""Files on their way into Cross-Origin Storage; the loop alone would not keep the tasks."""


def cross_origin_bytes() -> int:
    """Bytes of weights that were taken from Cross-Origin Storage since the worker's start."""
    return int(capstan_host.storage.crossOriginBytes())


class JsSource:
    """Implements capstan.host.storage_interface.Source by calls to web/src/worker/storage/source.ts, and to
    cross_origin.ts for a file that another site stored.
    """

    def __init__(self, source: Any) -> None:
        self._js = source
        self._elsewhere: Any = None
        self.identity = SourceIdentity(**json.loads(source.identity()))

    async def look_elsewhere(self) -> None:
        if self.identity.sha256 is None or self._elsewhere is not None:
            return
        try:
            with storage_errors():
                found = await capstan_host.storage.findCrossOrigin(self.identity.name)
                if not hasattr(found, "pieces"):
                    return
                if found.sound is not True:
                    await self._judge(found)
        except StorageError as error:
            fall_back(CROSS_ORIGIN, str(error), "files come from their server")
            return
        self._elsewhere = found

    async def _judge(self, found: Any) -> None:
        """Compare the file with the digest before any of its bytes is used. Raises StorageError."""
        whole = hashlib.sha256()
        await found.pieces(lambda piece: whole.update(piece.to_bytes()))
        found.judge(whole.hexdigest() == self.identity.sha256)
        if not found.sound:
            raise StorageError(f"{self.identity.name}: its file has SHA-256 {whole.hexdigest()}, not the hub's")

    def offer(self, backing: Backing, name: str) -> None:
        if self.identity.sha256 is None or self._elsewhere is not None:
            return
        assert isinstance(backing, JsBacking)
        task = asyncio.ensure_future(self._offer(backing, name))
        offers.add(task)
        task.add_done_callback(offers.discard)

    async def _offer(self, backing: JsBacking, name: str) -> None:
        try:
            with storage_errors():
                await capstan_host.storage.keepCrossOrigin(self.identity.name, backing.js, name)
        except StorageError as error:
            fall_back(CROSS_ORIGIN, str(error), f"other sites download {self.identity.name} themselves")

    async def load(
        self,
        plan: LoadPlan,
        file: DataFile | None,
        sink: Sink,
        report: Callable[[int], None],
        hashed: Callable[[int, bytes], None] | None,
    ) -> Outcome:
        assert isinstance(sink, JsSink)
        assert file is None or isinstance(file, JsDataFile)
        opened, backing = (file.js, file.backing) if file else (None, None)
        taken = (lambda start, view: hashed(start, view.to_bytes())) if hashed else None
        load = capstan_host.storage.load
        source = self._elsewhere or self._js
        with typed_errors():
            found = await load(json.dumps(plan.as_json()), sink.js, opened, report, source, backing, taken)
        outcome = Outcome(**json.loads(found))
        if outcome.problem == "source" and self._elsewhere is not None:
            fall_back(CROSS_ORIGIN, outcome.message, "the rest comes from the server")
            self._elsewhere = None
        return outcome

    def memory(self, start: int, length: int) -> JsMemory:
        return memory(length, start)

    def opened(self) -> JsParts | None:
        return JsParts(self._js) if self._js.here is True else None

    def close(self) -> None:
        for source in (self._js, self._elsewhere):
            if source is not None:
                source.close()


class JsParts:
    """Implements capstan.host.storage_interface.PartsFile by calls to web/src/worker/storage/parts.ts."""

    def __init__(self, file: Any) -> None:
        self.js = file

    async def parts(self, places: Sequence[tuple[int, int]]) -> bytes:
        with typed_errors():
            return bytes((await capstan_host.storage.readParts(self.js, json.dumps(places))).to_bytes())

    def close(self) -> None:
        self.js.close()


class JsDataFile(JsParts):
    """Implements capstan.host.storage_interface.DataFile by calls to web/src/worker/storage/backing.ts."""

    def __init__(self, file: Any, backing: Any) -> None:
        super().__init__(file)
        self.backing = backing
        self.exclusive = bool(file.exclusive)

    async def sha256(self, start: int, length: int) -> str | None:
        with storage_errors():
            found = await capstan_host.storage.digest(self.js, start, length)
        return found if isinstance(found, str) else None

    async def write(self, start: int, data: bytes | bytearray | memoryview) -> str:
        with storage_errors():
            return str(await capstan_host.storage.writeShard(self.js, start, data))

    async def flush(self) -> None:
        with storage_errors():
            await self.js.flush()

    async def load(self, plan: LoadPlan, sink: Sink) -> Outcome:
        assert isinstance(sink, JsSink)
        with typed_errors():
            found = await capstan_host.storage.load(json.dumps(plan.as_json()), sink.js, self.js, None)
        return Outcome(**json.loads(found))

    def memory(self, start: int, length: int) -> JsMemory:
        return memory(length, start)


class JsBacking:
    """Implements capstan.host.storage_interface.Backing by calls to web/src/worker/storage/backing.ts."""

    def __init__(self, backing: Any) -> None:
        self.js = backing
        self.kind = str(backing.kind)

    async def names(self) -> list[str]:
        with storage_errors():
            names: list[str] = json.loads(await self.js.names())
        return names

    async def read_text(self, name: str) -> str | None:
        with storage_errors():
            found = await capstan_host.storage.readText(self.js, name)
        return str(found.to_bytes(), "utf-8") if hasattr(found, "to_bytes") else None

    async def write_text(self, name: str, text: str) -> None:
        with storage_errors():
            await capstan_host.storage.writeText(self.js, name, text.encode())

    async def read_bytes(self, name: str) -> bytes | None:
        with storage_errors():
            found = await capstan_host.storage.readBytes(self.js, name)
        return bytes(found.to_bytes()) if hasattr(found, "to_bytes") else None

    async def write_bytes(self, name: str, data: bytes) -> None:
        with storage_errors():
            await capstan_host.storage.writeBytes(self.js, name, data)

    async def remove(self, name: str) -> None:
        with storage_errors():
            await self.js.remove(name)

    async def open(self, name: str, size: int, shard_size: int, write: bool) -> JsDataFile:
        async def opened() -> JsDataFile:
            with storage_errors():
                return JsDataFile(await self.js.open(name, size, shard_size, write), self.js)

        return await or_undone(opened(), JsDataFile.close)

    async def free_bytes(self) -> int | None:
        return _number(await capstan_host.storage.freeBytes())


def stall_after(seconds: float) -> None:
    """See capstan.host.Host.stall_after."""
    capstan_host.storage.setStallTimeout(seconds)


def _number(value: Any) -> int | None:
    """Convert JavaScript's null to None."""
    return int(value) if isinstance(value, (int, float)) else None
