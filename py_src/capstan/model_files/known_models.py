"""Loads the list of models that are known to fit, `capstan.models`. known_models.json has the data and their date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import get_data
from typing import Any

from .hub import HubRepository

__all__ = ["KnownModel", "models"]


@dataclass(frozen=True)
class KnownModel:
    """A model of a hub: its place, its size, and the memory that it takes.

    `Model.load(known.repository, dtype=known.dtype)` loads it. `capstan.models` is a list to which you can append your
    own.
    """

    id: str
    """Its id on the Hugging Face hub, with the file if it is a GGUF file."""
    dtype: str | None
    """The graph of a repository; None for a GGUF file."""
    bytes: int | None
    """The bytes of its graph and weights; None if unknown."""
    family: str
    """The architecture, as `model.type` in genai_config.json names it."""
    context_length: int
    """The most tokens of a sequence."""
    cache_bytes_per_token: int
    """The bytes of the key/value cache for a token of a sequence, in float16; twice that in float32."""
    licence: str
    """The SPDX identifier."""
    needs_f16: bool
    """Whether the GPU must have shader-f16."""
    tried: bool
    """True if exactly this file was run; the others resemble such files."""
    name: str = ""
    """Its name in its makers' spelling."""
    parameters: int | None = None
    """The number of its parameters."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Search options for it if neither the caller nor its files have sampling options: see docs/models.md."""
    names_in_files: Sequence[str] = ()
    """Other names that converters wrote into files."""

    @property
    def repository(self) -> HubRepository:
        """The place of the model, for `Model.load` and `plan`."""
        return HubRepository(self.id)


# The package may be inside a wheel, which is not a folder.
models = [KnownModel(**fields) for fields in json.loads(get_data(__package__, "known_models.json") or "")["models"]]
