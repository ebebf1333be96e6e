"""Keeps weight files in the browser's storage, by their content. A file is written in the order data, record, source,
and removed in the order data, record, source. So a crash at any point leaves no file that looks complete and is not.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import OptionError, StorageError
from ..fallback import fall_back
from ..host import current_host
from ..host.notes import notes_of_files
from ..host.storage_interface import Backing, DataFile, SourceIdentity
from ..model_files.file_names import is_gguf
from ..model_files.gguf.shards import first_shard
from .manifest import Manifest
from .records import DATA, JOURNAL, RECORD, SOURCE, UPLOAD, Journal, SourceRecord, StoredRecord, UploadNote

__all__ = ["StoredWeights", "Verification", "WeightStore"]

FOLDER = "capstan-weights"
IN_ONNX = re.compile(r"(?<=/)onnx/[^/]+\.onnx(_data(_\d+)?)?$")
"""Matches the end of the URL of a graph or data file in Transformers.js' layout."""
OF_HUB = re.compile(r"(?P<repository>.+?/[^/]+/[^/]+)/resolve/[^/]+/.+")


@dataclass(frozen=True)
class StoredWeights:
    """One file in the store."""

    content: str | None
    """The content hash (capstan.weights.Manifest); None while it is being downloaded."""
    sources: tuple[str, ...]
    """URLs, or 'file:' and the path of a picked file."""
    size: int
    stored_bytes: int
    """The number of stored bytes. Less than `size` after an interrupted download, which the next load of the model
    continues.
    """
    suspect: tuple[int, ...] = ()
    """Shards that `verify` found damaged; the next load fetches them again."""

    @property
    def complete(self) -> bool:
        """Whether all of the file is stored."""
        return self.content is not None

    def called(self, which: str | None) -> bool:
        """Whether `which` names this file: by its content hash, its URL, or the URL of its model. The URL of a folder
        around the model's does not. A URL that begins with a slash matches any host.
        """
        if which is None or which == self.content:
            return True
        return which.rstrip("/") in {name.rstrip("/") for name in self._names(which)}

    def below(self, which: str) -> bool:
        """Whether its URL is below another one, which may be any folder."""
        folder = which.rstrip("/") + "/"
        return any(name.startswith(folder) for name in self._names(which))

    def _names(self, which: str) -> builtins.list[str]:
        names = [name for source in self.sources for name in names_of(source)]
        return [urlsplit(name).path for name in names] if which.startswith("/") else names


def names_of(source: str) -> tuple[str, ...]:
    """The URLs that name a stored file: its own, and those of its model. A model's URLs are the first file of a GGUF
    model, or the folder (in Transformers.js' layout the one around onnx/), and the repository of a hub.
    """
    of_hub = OF_HUB.fullmatch(source)
    in_onnx = IN_ONNX.search(source)
    folder = source[: in_onnx.start() if in_onnx else source.rfind("/") + 1]
    return (
        source,
        first_shard(source) if is_gguf(source.partition("?")[0]) else folder,
        *([of_hub["repository"]] if of_hub else []),
    )


@dataclass(frozen=True)
class Verification:
    """The result of `verify` for one file."""

    content: str
    sources: tuple[str, ...]
    shards: int
    damaged: tuple[int, ...]


class WeightStore:
    """The weights that this origin keeps: in its private file system, else in the Cache API, else nowhere.

    `which` of the methods is a content hash, a data file's URL, or the URL of a model folder or of a hub's repository
    (HUB/OWNER/NAME), each exactly: a folder of several models is refused with OptionError. Without it they apply to all
    files. All tabs of the origin see the same files.
    """

    def __init__(self, backing: Backing | None = None) -> None:
        self._backing = backing
        self._is_the_hosts = backing is None

    async def kind(self) -> str:
        """'opfs', 'cache', or 'memory' if weights are kept only while a model is open."""
        backing = await self.backing()
        return backing.kind if backing else "memory"

    async def list(self) -> list[StoredWeights]:
        """All stored files, interrupted downloads included."""
        backing = await self.backing()
        if backing is None:
            return []
        names = set(await backing.names())
        sources: dict[str, list[str]] = {}
        for name in sorted(names):
            if name.endswith(SOURCE) and (record := SourceRecord.parse(await backing.read_text(name))):
                sources.setdefault(record.content, []).append(record.identity.name)
        found, partial = [], []
        for name in sorted(names):
            if name.endswith(RECORD):
                stored = StoredRecord.parse(await backing.read_text(name))
                if stored is not None and stored.name == name and stored.data in names:
                    content, size = stored.manifest.content, stored.manifest.size
                    suspect = tuple(sorted(stored.suspect))
                    found.append(StoredWeights(content, tuple(sources.get(content, ())), size, size, suspect))
            elif name.endswith(JOURNAL):
                journal = Journal.parse(await backing.read_text(name))
                if journal is not None:
                    size = journal.identity.size or 0
                    partial.append(StoredWeights(None, (journal.identity.name,), size, journal.stored_bytes))
        return found + partial

    async def evict(self, which: str | None = None) -> int:
        """Remove files and return their size in bytes. This also removes notes about them (the graph and the tokenizer
        of a GGUF file) and the small files of a hub's repository; the next load requests the hub's current version.

        Raises StorageError, with nothing of that file removed, while another tab has it open, and OptionError for a
        folder of several models.
        """
        backing = await self.backing()
        if backing is None:
            return 0
        freed = 0
        names = await backing.names()
        addresses = [] if which is None else [which]
        for stored in await self._called(which):
            if stored.content is None:
                identity = await self._journaled(stored.sources[0])
                if identity is not None:
                    await self.forget_partial(identity)
            else:
                await self._remove(backing, stored.content)
            freed += stored.stored_bytes
            addresses += stored.sources
        if which is None:
            for name in names:
                await backing.remove(name)
        if self._is_the_hosts:
            freed += await notes_of_files().forget(None if which is None else map(first_shard, addresses))
            freed += await current_host().forget(None if which is None else addresses)
        return freed

    async def verify(self, which: str | None = None) -> builtins.list[Verification]:
        """Read complete files and compare each shard with its SHA-256. Damaged shards are marked; the next load fetches
        only these again.
        """
        backing = await self.backing()
        results = []
        for stored in await self._called(which):
            if backing is None or stored.content is None:
                continue
            record = await self.find_content(stored.content)
            if record is None:
                continue
            damaged = await damaged_shards(backing, record)
            if damaged != record.suspect:
                await backing.write_text(record.name, record.marked(damaged).serialize())
            results.append(
                Verification(stored.content, stored.sources, len(record.manifest.shards), tuple(sorted(damaged)))
            )
        return results

    async def _called(self, which: str | None) -> builtins.list[StoredWeights]:
        """The files of that name. Raises OptionError for the URL of a folder of several models."""
        files = await self.list()
        found = [stored for stored in files if stored.called(which)]
        others = [] if found or which is None else [stored.sources[0] for stored in files if stored.below(which)]
        if others:
            shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
            raise OptionError(
                f"{which} is not a stored model but a folder that has {shown}: name one of them, or omit the name for "
                "all"
            )
        return found

    async def backing(self) -> Backing | None:
        """The storage of this host; None without storage."""
        if self._backing is None:
            self._backing = await current_host().backing(FOLDER)
        return self._backing

    # For loading.

    async def find(self, identity: SourceIdentity) -> StoredRecord | None:
        """The stored file of a source, if the source has not changed since."""
        backing = await self.backing()
        if backing is None or identity.key is None:
            return None
        text = await backing.read_text(identity.name_key + SOURCE)
        source = SourceRecord.parse(text)
        if source is None:
            warn_damage(text, f"the record of {identity.name}")
            return None
        return await self.find_content(source.content) if source.identity == identity else None

    async def last_known(self, name: str) -> SourceIdentity | None:
        """The identity of a source when its file was stored, for a source that is unreachable now."""
        source = await self.noted(name)
        if source is None or await self.find_content(source.content) is None:
            return None
        return source.identity

    async def noted(self, name: str) -> SourceRecord | None:
        """The record of a source from the last time that its file was stored."""
        backing = await self.backing()
        key = SourceIdentity(name, None, None).name_key
        return SourceRecord.parse(await backing.read_text(key + SOURCE)) if backing else None

    async def find_content(self, content: str) -> StoredRecord | None:
        """The file with these bytes."""
        backing = await self.backing()
        if backing is None:
            return None
        text = await backing.read_text(content + RECORD)
        record = StoredRecord.parse(text)
        if record is not None and record.manifest.content == content:
            return record
        warn_damage(text, f"the record of the content {content}")
        return None

    def journal_of(self, identity: SourceIdentity) -> str:
        """The name of the text that lists the shards of a download."""
        return f"{identity.key}{JOURNAL}"

    async def journal(self, identity: SourceIdentity, shard_size: int) -> Mapping[int, str]:
        """The shards that an interrupted download of the same bytes left, with their digests."""
        backing = await self.backing()
        if backing is None or identity.key is None:
            return {}
        text = await backing.read_text(self.journal_of(identity))
        journal = Journal.parse(text)
        if journal is None:
            warn_damage(text, f"the journal of {identity.name}")
            return {}
        return journal.digests if journal.identity == identity and journal.shard_size == shard_size else {}

    async def begin(self, identity: SourceIdentity, shard_size: int, digests: Mapping[int, str]) -> None:
        """Note that the data file of a download holds these shards and will be written. Records that call the file
        complete are removed.
        """
        backing = await self._present()
        await self._unrecord(backing, f"{identity.key}{DATA}")
        await backing.write_text(self.journal_of(identity), Journal(identity, shard_size, digests).serialize())

    async def complete(self, identity: SourceIdentity, manifest: Manifest) -> StoredRecord:
        """Turn a data file with every shard into a stored file, and remove the source's earlier file."""
        backing = await self._present()
        record = await self.find_content(manifest.content)
        if record is None or record.data not in await backing.names():
            record = StoredRecord(manifest, f"{identity.key}{DATA}")
            await backing.write_text(record.name, record.serialize())
        await self.adopt(identity, manifest.content)
        await backing.remove(self.journal_of(identity))
        if record.data != f"{identity.key}{DATA}":
            await backing.remove(f"{identity.key}{DATA}")
        return record

    async def adopt(self, identity: SourceIdentity, content: str) -> None:
        """Note that a source has this stored content; drop its earlier content unless another source has it."""
        backing = await self._present()
        if identity.key is None:
            return
        source = SourceRecord(identity, content)
        before = SourceRecord.parse(await backing.read_text(source.name))
        if before == source:
            return
        await backing.write_text(source.name, source.serialize())
        if before is None or before.content == content:
            return
        others = [stored for stored in await self.list() if stored.content == before.content]
        if others and not others[0].sources:
            await self._remove(backing, before.content)

    async def repaired(self, record: StoredRecord, suspect: frozenset[int]) -> None:
        """Note which shards are still damaged."""
        await (await self._present()).write_text(record.name, record.marked(suspect).serialize())

    async def note_upload(self, identity: SourceIdentity, plan: str) -> None:
        """Keep the plan of a source's upload to the GPU: the next page begins the upload while Python starts
        (web/src/worker/before_python.ts).
        """
        backing = await self._present()
        name, note = identity.name_key + UPLOAD, UploadNote(plan).serialize()
        before = await backing.read_text(name)
        if before == note:
            return
        if before is not None and UploadNote.is_damaged(before):
            fall_back(
                f"the note about the upload of {identity.name}", "it is damaged", "it began after Python had started"
            )
        await backing.write_text(name, note)

    async def forget_partial(self, identity: SourceIdentity) -> None:
        """Remove an interrupted download."""
        backing = await self._present()
        await self._unrecord(backing, f"{identity.key}{DATA}")
        await backing.remove(f"{identity.key}{DATA}")
        await backing.remove(self.journal_of(identity))

    async def _unrecord(self, backing: Backing, data: str) -> None:
        """Remove the records that call a data file complete, and incomplete records."""
        for name in await backing.names():
            if name.endswith(RECORD):
                record = StoredRecord.parse(await backing.read_text(name))
                if record is None or record.data == data:
                    await backing.remove(name)

    async def _present(self) -> Backing:
        backing = await self.backing()
        if backing is None:
            raise StorageError("this browser offers neither a private file system nor the Cache API; nothing is kept")
        return backing

    async def _journaled(self, source: str) -> SourceIdentity | None:
        backing = await self._present()
        for name in await backing.names():
            if name.endswith(JOURNAL):
                journal = Journal.parse(await backing.read_text(name))
                if journal is not None and journal.identity.name == source:
                    return journal.identity
        return None

    async def _remove(self, backing: Backing, content: str) -> None:
        record = await self.find_content(content)
        if record is not None:
            await backing.remove(record.data)
            await backing.remove(record.name)
        for name in await backing.names():
            if name.endswith(SOURCE):
                source = SourceRecord.parse(await backing.read_text(name))
                if source is None or source.content == content:
                    await backing.remove(name)
                    await backing.remove(name.removesuffix(SOURCE) + UPLOAD)


def warn_damage(text: str | None, what: str) -> None:
    """Count a fallback for a `text` that could not be read, if there is one."""
    if text is not None:
        fall_back(what, "it is damaged", "it is ignored, and rewritten by the next load")


async def damaged_shards(backing: Backing, record: StoredRecord) -> frozenset[int]:
    """The shards that differ from their digests; all of them if the file cannot be read."""
    manifest = record.manifest
    try:
        file = await backing.open(record.data, manifest.size, manifest.shard_size, write=False)
    except StorageError:
        return frozenset(range(len(manifest.shards)))
    try:
        damaged = set()
        for shard in range(len(manifest.shards)):
            try:
                sound = await is_sound(file, manifest, shard)
            except StorageError:
                sound = False
            if not sound:
                damaged.add(shard)
        return frozenset(damaged)
    finally:
        file.close()


async def is_sound(file: DataFile, manifest: Manifest, shard: int) -> bool:
    """Whether a shard of a stored file has its digest. Raises StorageError if it cannot be read."""
    return await file.sha256(*manifest.span(shard)) == manifest.shards[shard]
