"""Loads one weight file: stored bytes from the store, all others from its source; each byte is read once unless there
is a problem.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ..errors import ModelFileError, StorageError, WeightsChangedError
from ..fallback import fall_back
from ..host.retrying import TRIES, pause, times
from ..host.storage_interface import BrokenDownloadError, DataFile, LoadPlan, PartsFile, Sink, Source
from ..memory import BufferRequest
from . import manifest as manifests
from .idle import taken_as_it_is
from .manifest import Manifest, parse_manifest, shard_count
from .records import DATA, SourceRecord, StoredRecord
from .store import WeightStore
from .whole_hash import WholeHash

__all__ = ["WeightFile"]

REQUEST_BYTES = 48 << 20
"""The largest request. A browser may buffer all of a response that is read more slowly than it arrives, up to 64 MiB in
Chromium; its developer tools, while open, keep every response of less than 20 MB.
"""
STORE = "the weight store"
FROM_THE_NETWORK = "the weights come from their source"


class WeightFile:
    """A data file that is being loaded. `manifest` is known if it was written beforehand, or if the file is stored.

    Create it with `open`, use `read` for a few bytes and `load` for all, or `opened` for reads that go on, then `close`
    it. A failure of the store is a fallback, with a warning; a failure of the source is an error.
    """

    def __init__(
        self,
        source: Source,
        store: WeightStore | None,
        manifest: Manifest | None,
        record: StoredRecord | None,
    ) -> None:
        self.source = source
        self.identity = source.identity
        self.manifest = manifest
        self._store = store
        self._record = record
        self._size = manifest.size if manifest else self.identity.size
        self._shard_size = manifest.shard_size if manifest else manifests.SHARD_BYTES
        self._file: DataFile | None = None
        self._writable = False
        self._have: dict[int, str] = {}
        """The shards in the open data file, each with its expected digest."""
        self._suspect: set[int] = set(record.suspect) if record else set()
        self._digests_are_stored = record is not None and manifest is record.manifest
        """Whether the digests come from the store instead of a file beside the data."""
        self._whole = WholeHash(source.identity) if source.identity.sha256 and manifest is None else None
        """The download's hash; kept only if no manifest can confirm the download."""

    @classmethod
    async def open(
        cls,
        source: Source,
        store: WeightStore | None,
        read_manifest: Callable[[], Awaitable[bytes | None]],
    ) -> WeightFile:
        """Open the file of a source. `read_manifest` returns the content of the `.shards.json` beside the file, or None
        if there is none.
        """
        record = None
        try:
            if store is not None and await store.backing() is None:
                store = None
            record = await store.find(source.identity) if store else None
        except StorageError as error:
            fall_back(STORE, str(error), FROM_THE_NETWORK)
            store = None
        if record is not None:
            return cls(source, store, record.manifest, record)
        manifest = None
        text = await read_manifest()
        if text is not None:
            name = source.identity.name + manifests.MANIFEST_SUFFIX
            manifest = parse_manifest(text, name)
            size = source.identity.size
            if size is not None and size != manifest.size:
                raise ModelFileError(
                    f"{source.identity.name} has {size} bytes, but {name} was written for {manifest.size}; copy the "
                    "file again, or write its shards again with build.py models shards"
                )
            with suppress(StorageError):
                record = await store.find_content(manifest.content) if store else None
        if record is None:
            await source.look_elsewhere()
        return cls(source, store, manifest, record)

    @property
    def content(self) -> str | None:
        """The key by which models share these bytes: the content hash, else the key of the source's identity, else
        None."""
        if self.manifest is not None:
            return "content " + self.manifest.content
        return "source " + self.identity.key if self.identity.key else None

    @property
    def key(self) -> str | None:
        """The key of the source's identity, which does not change when the file is stored; None without one."""
        return self.identity.key

    @property
    def address(self) -> str:
        """The address of the source, under which the bytes are stored."""
        return self.identity.name

    @property
    def size(self) -> int | None:
        """The size of the file in bytes; None if the source does not give it."""
        return self._size

    def require(self, end: int) -> None:
        """Raise ModelFileError if the file is known to be too short for the weights that model.onnx names."""
        if self._size is not None and self._size < end:
            raise ModelFileError(self._too_short(self._size, end))

    def close(self) -> None:
        self.source.close()
        self._close_file()

    async def read(self, start: int, length: int) -> bytes:
        """A few bytes, without loading the rest: from the store if the file is complete there, else by a range
        request.
        """
        self.require(start + length)
        if length == 0:
            return b""
        found = self.source.memory(start, length)
        shard_size, end = length, start + length
        if self.manifest is not None:
            await self._open_stored(write=False)
            shard_size = self._shard_size
            start, end = start // shard_size * shard_size, min(-(-end // shard_size) * shard_size, self.manifest.size)
        try:
            await self._run(found, start, end, lambda _: None, shard_size, alone=True)
            return found.to_bytes()
        finally:
            found.close()
            self._close_file()

    async def load(self, sink: Sink, end: int, progress: Callable[[int, int], None]) -> None:
        """Give the sink the parts of the file that it takes; the model needs the first `end` bytes.

        A file that is not in the store is stored in the same pass. Raises ModelFileError, WeightsChangedError.
        """
        self.require(end)
        total = self._size or end
        try:
            await self._open()
            as_it_is = self._file is not None and not self._verifies
            report = lambda done: progress(min(done, total), total)  # noqa: E731
            at = await self._run(sink, 0, end if self._size is None else self._size, report, self._shard_size)
            if at < end:
                raise ModelFileError(self._too_short(at, end))
            await sink.finish()
            if self._whole is not None and (error := self._whole.error(self._size)):
                await self._drop_partial()
                raise error
            await self._finish_store()
            if as_it_is and self._record is not None:
                taken_as_it_is(self._record.manifest.content, self.identity.name)
        except WeightsChangedError:
            await self._drop_partial()
            raise
        finally:
            sink.close()
            self.close()

    async def opened(self, end: int, progress: Callable[[int, int], None]) -> PartsFile:
        """The file for reads of its parts, of which the model needs the first `end` bytes: a file of this machine
        itself, else the stored file. A file that is not stored, or has damaged shards, is fetched first.

        Raises StorageError if it cannot be stored, ModelFileError, WeightsChangedError.
        """
        self.require(end)
        try:
            near = self.source.opened()
            if near is not None:
                return near
            if self._record is None or self._suspect:
                first, last = min(self._suspect, default=0), max(self._suspect, default=-1)
                size = (last + 1 - first) * self._shard_size
                await self.load(self.source.memory(first * self._shard_size, size), end, progress)
            if self._store is None or self._record is None or await self._store.kind() != "opfs":
                raise StorageError(
                    f"{self.identity.name}: the browser's private file system does not hold it, so no rows of its "
                    "tables can be read; free storage with WeightStore().evict(), or load with "
                    "embedding_tables='memory'"
                )
            backing, manifest = await self._store.backing(), self._record.manifest
            assert backing is not None
            return await backing.open(self._record.data, manifest.size, manifest.shard_size, write=False)
        finally:
            self.close()

    async def note_upload(
        self, owner: str, requests: Sequence[BufferRequest], pieces: Sequence[Sequence[object]]
    ) -> None:
        """Let the next page upload this file before it is requested; `pieces` give their buffers by index in
        `requests`. Without effect if the file is not stored.
        """
        if self._store is None or self._record is None:
            return
        manifest = self._record.manifest
        size, shards = manifest.size, manifest.shards
        load = LoadPlan(0, size, size, manifest.shard_size, shards, True, range(len(shards)), REQUEST_BYTES)
        plan = {"data": self._record.data, "load": load.as_json(), "owner": owner}
        try:
            await self._store.note_upload(self.identity, json.dumps({**plan, "requests": requests, "pieces": pieces}))
        except StorageError as error:
            fall_back("the note about the upload", str(error), "the next page begins it after Python has started")

    async def _run(
        self,
        sink: Sink,
        start: int,
        end: int,
        report: Callable[[int], None],
        shard_size: int,
        alone: bool = False,
    ) -> int:
        """Load a part, and continue after each problem that can be repaired; returns the offset that was reached. With
        `alone`, for a few bytes, each shard has a separate request.

        Raises ModelFileError, WeightsChangedError.
        """
        hashed = self._whole.add if self._whole is not None and not alone else None
        at, broken, wrong = start, 0, 0
        while True:
            # A shard that is fetched again is fetched alone.
            until = min(end, at + shard_size) if wrong else end
            plan = self._plan(at, until, shard_size, alone or wrong > 0)
            found = await self.source.load(plan, self._file, sink, report, hashed)
            if found.at > at:
                at, broken, wrong = found.at, 0, 0
            for shard in found.unsound:
                del self._have[shard]
                if self._record is not None:
                    self._suspect.add(shard)
            # A damaged shard may have been fetched again since.
            for shard, digest in found.kept:
                self._have[shard] = digest
                self._suspect.discard(shard)
            if found.problem is None:
                if until == end:
                    return at
            elif found.problem == "source":
                broken += 1
                await self._after_break(BrokenDownloadError(found.message, found.wait), at, broken)
            elif found.problem == "digest":
                wrong += 1
                if wrong == TRIES:
                    await self._refuse(found.message, at, min(end, at + shard_size))
            else:
                fall_back(STORE, found.message, FROM_THE_NETWORK)
                if found.problem == "write":
                    await self._drop_partial()
                self._close_file()

    def _plan(self, start: int, end: int, shard_size: int, alone: bool) -> LoadPlan:
        count = shard_count(self._size or 0, shard_size)
        return LoadPlan(
            start=start,
            end=end,
            size=self._size,
            shard=shard_size,
            digests=self.manifest.shards if self.manifest else [self._have.get(i) for i in range(count)],
            vouched=self.manifest is not None,
            stored=sorted(self._have),
            request=REQUEST_BYTES,
            verifies=self._verifies,
            writes=self._file is not None and self._writable,
            journal=self._store.journal_of(self.identity) if self._store and self._keeps else None,
            alone=alone,
        )

    # The store.

    @property
    def _keeps(self) -> bool:
        """Whether a download is being stored."""
        return self._file is not None and self._record is None

    @property
    def _verifies(self) -> bool:
        """Whether stored shards are compared with their digests before use: a page that may have crashed left the file,
        or another tab may be writing it.
        """
        return self._keeps or (self._file is not None and not self._file.exclusive)

    async def _open(self) -> None:
        """Open the stored file, or a new one for the download."""
        if await self._open_stored(write=bool(self._suspect)):
            return
        if self._store is None or self.identity.size is None:
            return
        if self.identity.key is None:
            fall_back(
                STORE, f"{self.identity.name} comes without ETag and Last-Modified", "it is fetched at every load"
            )
            return
        self._record = None
        try:
            backing = await self._store.backing()
            assert backing is not None
            have = dict(await self._store.journal(self.identity, self._shard_size))
            if self.manifest is not None:
                have = {shard: digest for shard, digest in have.items() if digest == self.manifest.shards[shard]}
            free = await backing.free_bytes()
            missing = self.identity.size - len(have) * self._shard_size
            if free is not None and free < missing:
                raise StorageError(
                    f"{self.identity.name} needs {missing} bytes; the browser lets this origin store {free} more: "
                    "free some with WeightStore().evict()"
                )
            data = f"{self.identity.key}{DATA}"
            self._file = await backing.open(data, self.identity.size, self._shard_size, write=True)
            self._writable = True
            await self._store.begin(self.identity, self._shard_size, have)
            self._have = have
        except StorageError as error:
            fall_back(STORE, str(error), FROM_THE_NETWORK)
            self._close_file()

    async def _open_stored(self, write: bool) -> bool:
        if self._record is None or self._store is None:
            return False
        manifest = self._record.manifest
        try:
            backing = await self._store.backing()
            assert backing is not None
            try:
                self._file = await backing.open(self._record.data, manifest.size, manifest.shard_size, write)
                self._writable = write
            except StorageError as error:
                if not write:
                    raise
                fall_back(STORE, str(error), "damaged shards come from their source and are not repaired")
                self._file = await backing.open(self._record.data, manifest.size, manifest.shard_size, write=False)
        except StorageError as error:
            fall_back(STORE, str(error), FROM_THE_NETWORK)
            return False
        self._have = {i: digest for i, digest in enumerate(manifest.shards) if i not in self._suspect}
        return True

    async def _finish_store(self) -> None:
        """Turn a stored download into a stored file; note repairs."""
        if self._store is None:
            return
        try:
            before = await self._store.noted(self.identity.name)
            if self._record is not None:
                await self._store.adopt(self.identity, self._record.manifest.content)
                if self._suspect != self._record.suspect:
                    await self._store.repaired(self._record, frozenset(self._suspect))
            elif self._file is not None and self._size is not None:
                shards = tuple(self._have[i] for i in range(shard_count(self._size, self._shard_size)))
                self.manifest = Manifest(self._size, self._shard_size, shards)
                self._close_file()
                self._record = await self._store.complete(self.identity, self.manifest)
                if (backing := await self._store.backing()) is not None:
                    self.source.offer(backing, self._record.data)
            if before is not None and self._record is not None and before.content != self._record.manifest.content:
                self._warn_change(before)
        except StorageError as error:
            fall_back(STORE, str(error), "the weights are loaded; the next load fetches them again")
            if self._record is None:
                with suppress(StorageError):
                    await self._store.forget_partial(self.identity)

    def _warn_change(self, before: SourceRecord) -> None:
        """Warn that the source had different bytes when it was last stored."""
        was, now = (f"{known.validator} with {known.size} bytes" for known in (before.identity, self.identity))
        fall_back(
            "stored weights",
            f"{self.identity.name} changed since it was stored: it was {was}, and is now {now}",
            "the new file replaces the stored one",
        )

    async def _drop_partial(self) -> None:
        """Remove the stored part of a download that cannot be completed."""
        if self._keeps and self._store is not None:
            self._close_file()
            with suppress(StorageError):
                await self._store.forget_partial(self.identity)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        self._writable = False
        self._have = {}
        if file is not None:
            file.close()

    # The source.

    async def _after_break(self, broken: BrokenDownloadError, at: int, tried: int) -> None:
        """Wait before trying an interrupted download again. Raises ModelFileError after the last try."""
        self.source.close()
        if await pause(tried, broken):
            return
        kept = sum(min(self._shard_size, (self._size or 0) - i * self._shard_size) for i in self._have)
        again = f"{kept} bytes are kept; load the model again to continue" if self._keeps else "load the model again"
        raise ModelFileError(
            f"{self.identity.name}: the download stopped at byte {at} of {self._size}, "
            f"{times(tried, broken)} ({broken}); {again}"
        )

    async def _refuse(self, digest: str, start: int, end: int) -> None:
        """Remove a download in which a shard stays wrong. Raises WeightsChangedError, ModelFileError."""
        assert self.manifest is not None
        shard = start // self.manifest.shard_size
        wanted = self.manifest.shards[shard]
        await self._drop_partial()
        found = f"{self.identity.name}: shard {shard} (bytes {start} to {end}) has SHA-256 {digest}"
        if self._digests_are_stored:
            raise WeightsChangedError(
                f"{found}; the stored digest is {wanted}, and the server reports the same file "
                f"({self.identity.validator}); remove the stored file with WeightStore().evict(URL) and load again"
            )
        raise ModelFileError(
            f"{found}, expected {wanted}, {TRIES} times; copy the file again, or write its shards again with build.py "
            "models shards"
        )

    def _too_short(self, size: int, end: int) -> str:
        return (
            f"{self.identity.name}: {size} bytes, but model.onnx names weights up to byte {end}; "
            "copy the file again, whole"
        )
