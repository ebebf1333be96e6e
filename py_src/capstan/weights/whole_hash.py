"""Compares a download without a manifest with the SHA-256 that its source gives."""

from __future__ import annotations

import hashlib

from ..errors import ModelFileError
from ..fallback import fall_back
from ..host.storage_interface import SourceIdentity

__all__ = ["WholeHash"]


class WholeHash:
    """The hash of a file's first bytes, updated as they arrive."""

    def __init__(self, identity: SourceIdentity) -> None:
        self._identity = identity
        self._hash = hashlib.sha256()
        self._hashed = 0

    def add(self, start: int, data: bytes) -> None:
        """Take the bytes at `start`, if these are the next ones."""
        if start == self._hashed:
            self._hash.update(data)
            self._hashed += len(data)

    def error(self, size: int | None) -> ModelFileError | None:
        """The reason why a file of this size is not the source's, or None. If only parts arrived, None with a step
        down.
        """
        name, listed, found = self._identity.name, self._identity.sha256, self._hash.hexdigest()
        if found == listed:
            return None
        if self._hashed != size:
            fall_back(
                "the check of a download",
                f"the load reads only parts of {name}, and no store keeps the whole file, which the hub's SHA-256 "
                "covers",
                "the parts are used unchecked; if the page may store files, the whole file is fetched and compared",
            )
            return None
        return ModelFileError(
            f"{name}: {self._hashed} bytes with SHA-256 {found} came, but the hub lists {listed}; none of them are "
            "kept: load the model again; if the error stays, take another revision"
        )
