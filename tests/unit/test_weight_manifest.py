"""Manifests of weight files: what they say, and that a torn or forged one is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from capstan.errors import ModelFileError
from capstan.host.storage_interface import SourceIdentity
from capstan.weights.manifest import MAX_SHARD_BYTES, Manifest, parse_manifest
from capstan.weights.records import Journal, SourceRecord, StoredRecord

DATA = bytes(range(250))
MANIFEST = Manifest.of([DATA[i : i + 100] for i in range(0, 250, 100)], 100)
IDENTITY = SourceIdentity("https://host/m/data", 250, 'etag "1"')


def test_the_shards_are_the_files_pieces_and_the_content_hash_is_over_their_digests() -> None:
    digests = [hashlib.sha256(DATA[i : i + 100]).digest() for i in (0, 100, 200)]
    assert MANIFEST.shards == tuple(digest.hex() for digest in digests)
    assert MANIFEST.content == hashlib.sha256(b"".join(digests)).hexdigest()
    assert [MANIFEST.span(i) for i in range(3)] == [(0, 100), (100, 100), (200, 50)]


def test_a_manifest_comes_back_as_it_was_written() -> None:
    assert parse_manifest(MANIFEST.serialize(), "m") == MANIFEST
    empty = Manifest.of([], 100)
    assert parse_manifest(empty.serialize(), "m") == empty


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a capstan-shards file of version 1"),
        ({"version": 2}, "not a capstan-shards file of version 1"),
        ({"size": -1}, "size is -1"),
        ({"size": True}, "size is True"),
        ({"size": 301}, "3 shards of 100 bytes, expected 4 for 301 bytes"),
        ({"shard_size": 0}, f"shard_size is 0, expected 1 to {MAX_SHARD_BYTES}"),
        ({"shard_size": MAX_SHARD_BYTES + 1}, f"expected 1 to {MAX_SHARD_BYTES}"),
        ({"shards": ["ab"]}, "64 hex digits"),
        ({"shards": None}, "64 hex digits"),
        ({"shards": [MANIFEST.shards[0]] * 3}, "content is"),
        ({"content": "0" * 64}, "its shards give " + MANIFEST.content),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    text = json.dumps({**MANIFEST.as_json(), **changes})
    with pytest.raises(ModelFileError, match=message) as caught:
        parse_manifest(text, "model.onnx.data.shards.json")
    assert str(caught.value).startswith("model.onnx.data.shards.json")
    assert "build.py models shards" in str(caught.value)


def test_a_torn_manifest_is_refused_wherever_it_is_torn() -> None:
    text = MANIFEST.serialize().rstrip()
    for length in range(len(text)):
        with pytest.raises(ModelFileError):
            parse_manifest(text[:length], "m")


def test_records_come_back_as_they_were_written() -> None:
    stored = StoredRecord(MANIFEST, "k.data", frozenset({2, 0}))
    assert StoredRecord.parse(stored.serialize()) == stored
    source = SourceRecord(IDENTITY, MANIFEST.content)
    assert SourceRecord.parse(source.serialize()) == source
    journal = Journal(IDENTITY, 100, {0: MANIFEST.shards[0], 2: MANIFEST.shards[2]})
    assert Journal.parse(journal.serialize()) == journal
    assert journal.stored_bytes == 150


@pytest.mark.parametrize("kind", [StoredRecord, SourceRecord, Journal])
def test_a_torn_or_foreign_record_is_none(kind: Any) -> None:
    whole = {
        StoredRecord: StoredRecord(MANIFEST, "k.data").serialize(),
        SourceRecord: SourceRecord(IDENTITY, MANIFEST.content).serialize(),
        Journal: Journal(IDENTITY, 100, {0: MANIFEST.shards[0]}).serialize(),
    }
    assert kind.parse(None) is None
    first_line = len(whole[kind].splitlines()[0]) if kind is Journal else len(whole[kind])
    for length in range(first_line):
        assert kind.parse(whole[kind][:length]) is None
    for other, text in whole.items():
        if other is not kind:
            assert kind.parse(text) is None


def test_a_journal_keeps_only_whole_entries_that_can_be() -> None:
    text = Journal(IDENTITY, 100, {1: MANIFEST.shards[1]}).serialize()
    bad = [[3, MANIFEST.shards[0]], ["2", MANIFEST.shards[0]], [-1, MANIFEST.shards[0]], [2, "torn"], [2], 7, {}]
    journal = Journal.parse(text + "".join(json.dumps(entry) + "\n" for entry in bad) + "[2, \n")
    assert journal is not None
    assert journal.digests == {1: MANIFEST.shards[1]}
    added = Journal.entry(2, MANIFEST.shards[2])
    for length in range(len(added)):
        torn = Journal.parse(text + added[:length])
        assert torn is not None
        assert torn.digests == {1: MANIFEST.shards[1]}
    whole = Journal.parse(text + added)
    assert whole is not None
    assert set(whole.digests) == {1, 2}


def test_a_source_that_vouches_for_nothing_has_no_key() -> None:
    assert IDENTITY.key != SourceIdentity(IDENTITY.name, 250, 'etag "2"').key
    assert SourceIdentity(IDENTITY.name, None, 'etag "1"').key is None
    assert SourceIdentity(IDENTITY.name, 250, None).key is None
