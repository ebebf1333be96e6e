"""Describes results that a site has ready-made for known files, so that a first visit need not compute them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReadyGraphs", "ReadyMade"]


@dataclass(frozen=True)
class ReadyGraphs:
    """The texts of the graphs for WebGPU and for the CPU, and the files from which they were made."""

    about: str
    webgpu: str
    wasm: str
    """The graph for the CPU; empty for activations in float16."""


@dataclass(frozen=True)
class ReadyMade:
    """The ready-made results for a GGUF file and a dtype. They are valid for a file whose header has this digest."""

    header: int
    """The bytes of the header."""
    sha256: str
    text: str | None
    """A line about the model, one about its graphs, and the graphs for each device; None if the site's file is
    incomplete.
    """
