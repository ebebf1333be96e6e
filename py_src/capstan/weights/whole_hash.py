"""Compares a download that no manifest confirms with the SHA-256 that its source gives."""

from __future__ import annotations

import hashlib

from ..errors import ModelFileError
from ..fallback import fall_back
from ..host.storage_interface import SourceIdentity

__all__ = ["WholeHash"]


class WholeHash:
    """The hash of a file's first bytes, as they come."""

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
        """Why a file of this size is not the source's; None if it is, and with a step down if only parts came."""
        name, listed, found = self._identity.name, self._identity.sha256, self._hash.hexdigest()
        if found == listed:
            return None
        if self._hashed != size:
            fall_back(
                "the check of a download",
                f"only parts of {name} are wanted, and no store keeps the whole: the hub's SHA-256 is that of the "
                "whole file",
                "the parts are used as they came; where the page may store files, the whole is fetched and compared",
            )
            return None
        return ModelFileError(
            f"{name}: {self._hashed} bytes with SHA-256 {found} came, but the hub lists {listed}; none of them are "
            "kept: load the model again; if the error stays, take another revision"
        )
