"""Results that a site has ready-made for files that it knows, in place of computing them at a first visit."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReadyGraphs", "ReadyMade"]


@dataclass(frozen=True)
class ReadyGraphs:
    """The text of a device's graphs, and their sources."""

    about: str
    text: str


@dataclass(frozen=True)
class ReadyMade:
    """The results for a GGUF file and a dtype; they are right for a file whose header has this digest."""

    header: int
    """The bytes of the header."""
    sha256: str
    text: str | None
    """A line about the model, one about its graphs, and the graphs; None if the site's file did not come whole."""
