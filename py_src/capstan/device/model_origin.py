"""Names the files from which a model was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..host.storage_interface import WeightData

__all__ = ["ModelOrigin"]


@dataclass
class ModelOrigin:
    """The files that determine what a model's caches hold; the host notes them while it loads the model."""

    graph: str = ""
    """The SHA-256 of the decoder's graph, as hex."""
    files: dict[str, WeightData] = field(default_factory=dict)
    """The data files by location, as they were opened last."""

    def names(self) -> Mapping[str, list[str]]:
        """By location all names of a file's bytes: the digest of its content and the key of its source, if known. Two
        loads have the same bytes if they share a name. A file that is not stored yet may lack the digest.
        """
        known = {
            location: {file.content, file.key and f"source {file.key}"} - {None}
            for location, file in self.files.items()
        }
        return {location: sorted(map(str, names)) for location, names in known.items()}
