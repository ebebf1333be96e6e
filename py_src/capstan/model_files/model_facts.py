"""Determines a model's name, and its search options if the caller gives none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..stages.search import DRAWING
from .genai_config import GenaiConfig
from .hub import HubRepository
from .known_models import KnownModel, models

__all__ = ["ModelFacts", "facts_of"]

LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT"}
"""Licences that people know by name, by their SPDX identifiers."""
LONGEST = 80
"""Characters of a name or a licence that are shown."""


@dataclass(frozen=True)
class ModelFacts:
    """A model's name, size and licence.

    `str` joins them: "SmolLM2-135M-Instruct, 135 M parameters, 98 MB, Apache 2.0".
    """

    name: str
    """The known model's name, or the name in the files, or the name of the file or folder."""
    parameters: int | None = None
    bytes: int | None = None
    """The bytes of graph and weights."""
    licence: str | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    """Search options for callers that give none: a known model's, unless the model's own files have sampling
    options.
    """

    def __str__(self) -> str:
        licence = self.licence and LICENCES.get(self.licence.lower(), f"licence {self.licence}")
        parameters = self.parameters and f"{rounded(self.parameters, 'B')} parameters"
        size = self.bytes and f"{rounded(self.bytes, 'G')}B"
        return ", ".join(part for part in (self.name, parameters, size, licence) if part)


def facts_of(config: GenaiConfig, place: str | HubRepository) -> ModelFacts:
    """The facts of a model from its configuration; `place` is its repository, or the path of its file or folder."""
    known, stated = known_as(config, place), config.stated
    name, parameters, size, licence = stated.name, stated.parameters, stated.bytes, stated.licence
    search: Mapping[str, Any] = {}
    if known is not None:
        name, parameters = known.name or name, known.parameters or parameters
        size, licence = size or known.bytes, licence or known.licence
        if not any(option in config.search for option in ("do_sample", *DRAWING)):
            search = known.search
    return ModelFacts(shown(name) or last_name(place), parameters, size, shown(licence) or None, search)


def known_as(config: GenaiConfig, place: str | HubRepository) -> KnownModel | None:
    """The entry of `capstan.models` for a model: by its repository, else by its family and the name in its files. The
    file's own name is used only if there is no name inside.
    """
    if isinstance(place, HubRepository):
        found = next((known for known in models if known.id.lower() == place.id.lower()), None)
        if found is not None:
            return found
    name = plain(config.stated.name or last_name(place))
    for known in models:
        names = (known.name, *known.names_in_files) if config.stated.name else (known.name, last_name(known.id))
        if known.family == config.model_type and name in map(plain, names):
            return known
    return None


def plain(name: str) -> str:
    """A name for comparisons: converters differ in case and in the characters between words."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def last_name(place: str | HubRepository) -> str:
    """The name of a file, without its ending, or of a folder."""
    path = place.id if isinstance(place, HubRepository) else place
    return re.split(r"[/\\:]", path.rstrip("/\\"))[-1].removesuffix(".gguf")


def shown(text: str | None) -> str:
    """A text of a file in a form that is safe to show in a terminal."""
    return "".join(character for character in text or "" if character.isprintable())[:LONGEST].strip()


def rounded(count: int, billions: str) -> str:
    """A count in millions or billions: 135 M, 1.2 B; `billions` is the letter for billions."""
    unit, size = (billions, 1e9) if count >= 999.5e6 else ("M", 1e6)
    return f"{count / size:.{0 if count >= 9.95 * size else 1}f} {unit}"
