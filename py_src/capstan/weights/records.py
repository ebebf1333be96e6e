"""Reads and writes the store's records about its data files. A damaged or foreign record reads as None, as if it were
absent.

Records hold a digest of their other fields, except those of Capstan 0.2.0 and before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ModelFileError
from ..host.storage_interface import SourceIdentity
from ..model_files.bounded_json import NotJsonError, read_json
from .manifest import DIGEST, Manifest, manifest_of, shard_count

__all__ = ["DATA", "JOURNAL", "RECORD", "SOURCE", "UPLOAD", "Journal", "SourceRecord", "StoredRecord", "UploadNote"]

DATA, JOURNAL, RECORD, SOURCE = ".data", ".journal.jsonl", ".weights.json", ".source.json"
UPLOAD = ".upload.json"
"""Endings of names. NAME.data holds bytes. During a download KEY.journal.jsonl lists its sound shards. After the
download CONTENT.weights.json gets the file's manifest, and the last write is SOURCE.source.json, which names the
content. SOURCE.upload.json has the plan of the last upload of a source's file to the GPU.
"""
SEAL = "seal"
"""The field with the digest of the others."""


@dataclass(frozen=True)
class StoredRecord:
    """A complete file in the store."""

    manifest: Manifest
    data: str
    """Name of the data file."""
    suspect: frozenset[int] = frozenset()
    """Shards that `verify` found damaged; the next load fetches them again."""

    @property
    def name(self) -> str:
        return self.manifest.content + RECORD

    def serialize(self) -> str:
        return sealed({**self.manifest.as_json(), "data": self.data, "suspect": sorted(self.suspect)})

    def marked(self, suspect: frozenset[int]) -> StoredRecord:
        return replace(self, suspect=suspect)

    @classmethod
    def parse(cls, text: str | None) -> StoredRecord | None:
        tree = unsealed(text)
        try:
            manifest = manifest_of(tree, "record")
        except ModelFileError:
            return None
        assert tree is not None
        data, suspect = tree.get("data"), tree.get("suspect")
        if not isinstance(data, str) or not isinstance(suspect, list) or not all(type(i) is int for i in suspect):
            return None
        return cls(manifest, data, frozenset(suspect))


@dataclass(frozen=True)
class SourceRecord:
    """The content of a source, and the facts by which it is recognised."""

    identity: SourceIdentity
    content: str

    @property
    def name(self) -> str:
        return self.identity.name_key + SOURCE

    def serialize(self) -> str:
        return sealed({"source": self.identity.as_json(), "content": self.content})

    @classmethod
    def parse(cls, text: str | None) -> SourceRecord | None:
        tree = unsealed(text)
        identity = identity_of(tree)
        if tree is None or identity is None or not isinstance(tree.get("content"), str):
            return None
        return cls(identity, tree["content"])


@dataclass(frozen=True)
class UploadNote:
    """A plan of an upload, as text, which the page reads before Python has started
    (web/src/worker/before_python.ts).
    """

    plan: str

    def serialize(self) -> str:
        return json.dumps({"plan": self.plan, SEAL: digest(self.plan)})

    @staticmethod
    def is_damaged(text: str) -> bool:
        """Whether the text is not a note of this form. Notes of Capstan 0.2.0 and before, which have only the plan, are
        not read.
        """
        tree = tree_of(text) or {}
        plan = tree.get("plan")
        return "requests" not in tree and not (isinstance(plan, str) and tree.get(SEAL) == digest(plan))


@dataclass(frozen=True)
class Journal:
    """A download under way: the SHA-256 of each shard that the data file holds."""

    identity: SourceIdentity
    shard_size: int
    digests: Mapping[int, str]

    @property
    def stored_bytes(self) -> int:
        size = self.identity.size or 0
        return sum(min(self.shard_size, size - shard * self.shard_size) for shard in self.digests)

    def serialize(self) -> str:
        """One line about the source, then one for each shard; `entry` makes the lines that are added later."""
        about = json.dumps({"source": self.identity.as_json(), "shard_size": self.shard_size}) + "\n"
        return about + "".join(self.entry(shard, digest) for shard, digest in self.digests.items())

    @staticmethod
    def entry(shard: int, digest: str) -> str:
        return json.dumps([shard, digest]) + "\n"

    @classmethod
    def parse(cls, text: str | None) -> Journal | None:
        """Parse a journal; incomplete and impossible entries are left out."""
        first, *lines = (text or "").split("\n")
        tree = tree_of(first)
        identity = identity_of(tree)
        if tree is None or identity is None or identity.size is None or not lines:
            return None
        shard_size = tree.get("shard_size")
        if type(shard_size) is not int or shard_size < 1:
            return None
        count = shard_count(identity.size, shard_size)
        digests = {}
        for line in lines[:-1]:
            try:
                shard, digest = read_json(line)
            except (TypeError, ValueError):
                continue
            if type(shard) is int and 0 <= shard < count and isinstance(digest, str) and DIGEST.fullmatch(digest):
                digests[shard] = digest
        return cls(identity, shard_size, digests)


def sealed(tree: Mapping[str, Any]) -> str:
    """A record as text, with a digest of its other fields."""
    return json.dumps({**tree, SEAL: digest(json.dumps(tree))})


def unsealed(text: str | None) -> dict[str, Any] | None:
    """The record in a text; None if its digest does not match."""
    tree = tree_of(text)
    seal = tree.pop(SEAL, None) if tree else None
    return tree if seal is None or seal == digest(json.dumps(tree)) else None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tree_of(text: str | None) -> dict[str, Any] | None:
    try:
        tree = read_json(text or "")
    except NotJsonError:
        return None
    return tree if isinstance(tree, dict) else None


def identity_of(tree: dict[str, Any] | None) -> SourceIdentity | None:
    source = tree.get("source") if tree else None
    if not isinstance(source, dict):
        return None
    name, size, validator = source.get("name"), source.get("size"), source.get("validator")
    if not isinstance(name, str) or type(size) is not int or not isinstance(validator, str):
        return None
    return SourceIdentity(name, size, validator)
