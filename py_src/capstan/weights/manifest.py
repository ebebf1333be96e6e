"""Reads the manifest of a weight file: its size and the SHA-256 of each of its shards."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ModelFileError
from ..model_files.bounded_json import NotJsonError, clipped, read_json

__all__ = ["MANIFEST_SUFFIX", "MAX_SHARD_BYTES", "SHARD_BYTES", "Manifest", "parse_manifest"]

SHARD_BYTES = 4 << 20
"""The shard size of a file that has no manifest."""
MAX_SHARD_BYTES = 16 << 20
"""The largest shard; it is in memory while it is verified."""
MOST_BYTES = 1 << 44
"""The largest file: 16 TiB, more than any browser downloads."""
MANIFEST_SUFFIX = ".shards.json"
"""A model folder may carry this beside each data file; `build.py models shards` writes it."""

FORMAT = "capstan-shards"
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """A file of `size` bytes, cut every `shard_size` bytes; `shards` holds the SHA-256 of each piece, as hex.

    `content` names the bytes: the SHA-256 over the shards' digests (32 bytes each, in order), as hex.
    """

    size: int
    shard_size: int
    shards: tuple[str, ...]

    @property
    def content(self) -> str:
        return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in self.shards)).hexdigest()

    def span(self, shard: int) -> tuple[int, int]:
        """(offset, length) of a shard in the file."""
        start = shard * self.shard_size
        return start, min(self.shard_size, self.size - start)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": 1,
            "size": self.size,
            "shard_size": self.shard_size,
            "content": self.content,
            "shards": list(self.shards),
        }

    def serialize(self) -> str:
        return json.dumps(self.as_json(), indent=1) + "\n"

    @classmethod
    def of(cls, pieces: Iterable[bytes], shard_size: int) -> Manifest:
        """The manifest of a file whose bytes come in pieces of `shard_size`, the last one shorter."""
        size, shards = 0, []
        for piece in pieces:
            size += len(piece)
            shards.append(hashlib.sha256(piece).hexdigest())
        return cls(size, shard_size, tuple(shards))


def shard_count(size: int, shard_size: int) -> int:
    """The number of shards of a file."""
    return -(-size // shard_size)


def parse_manifest(text: str | bytes, name: str) -> Manifest:
    """The manifest in the text of a `.shards.json`; error messages call it `name`.

    Raises ModelFileError if it is cut off or contradicts itself: its `content` is checked against its shards.
    """
    try:
        tree = read_json(text)
    except NotJsonError as error:
        raise ModelFileError(f"{name}: {error}; write it again with build.py models shards") from error
    return manifest_of(tree, name)


def manifest_of(tree: Any, name: str) -> Manifest:
    """The manifest in JSON that is parsed already; errors as in `parse_manifest`."""
    remedy = "write it again with build.py models shards"
    if not isinstance(tree, dict) or tree.get("format") != FORMAT or tree.get("version") != 1:
        raise ModelFileError(f"{name} is not a {FORMAT} file of version 1; {remedy}")
    size, shard_size, shards = tree.get("size"), tree.get("shard_size"), tree.get("shards")
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        raise ModelFileError(f"{name}: size is {clipped(size)}, expected a number of bytes; {remedy}")
    if type(shard_size) is not int or not 0 < shard_size <= MAX_SHARD_BYTES:
        problem = f"shard_size is {clipped(shard_size)}, expected 1 to {MAX_SHARD_BYTES} bytes"
        raise ModelFileError(f"{name}: {problem}; {remedy}")
    if not isinstance(shards, list) or not all(isinstance(d, str) and DIGEST.fullmatch(d) for d in shards):
        raise ModelFileError(f"{name}: shards must be a list of SHA-256 digests, 64 hex digits each; {remedy}")
    if len(shards) != shard_count(size, shard_size):
        raise ModelFileError(
            f"{name}: {len(shards)} shards of {shard_size} bytes, expected {shard_count(size, shard_size)} "
            f"for {size} bytes; {remedy}"
        )
    manifest = Manifest(size, shard_size, tuple(shards))
    if tree.get("content") != manifest.content:
        raise ModelFileError(
            f"{name}: content is {clipped(tree.get('content'))}; its shards give {manifest.content}; {remedy}"
        )
    return manifest
