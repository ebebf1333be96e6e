"""Describes a found model, and keeps it in a note for later pages."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..host.notes import build
from ..host.ready_results import ReadyGraphs
from ..host.storage_interface import WeightData
from ..model_files.genai_config import GenaiConfig
from ..model_files.gguf.gguf_config import config_from_json, config_to_json

__all__ = ["FoundModel", "as_note", "from_note", "key_of", "named"]


@dataclass(frozen=True)
class FoundModel:
    """Describes a model: its configuration and facts, and the graphs that had to be read to find them."""

    config: GenaiConfig
    graphs: Mapping[str, bytes] = field(default_factory=dict)
    """By name, as in `config.graph_files`."""
    tokenizer: Mapping[str, str] | None = None
    """The tokenizer's files, if they are not files of the folder."""
    ready: ReadyGraphs | None = None
    """Each device's graphs, if the site has them ready-made."""


def named(found: FoundModel, name: str) -> FoundModel:
    """Give the model this name in messages. Without this, a ready-made model has the name from the site's note."""
    return replace(found, config=replace(found.config, name=name))


def key_of(files: Mapping[str, WeightData], dtype: str) -> str | None:
    """The key for the note of a model in these files; None if one of the files may change unnoticed."""
    keys = [files[name].key for name in sorted(files)]
    return None if None in keys else json.dumps([build(), keys, dtype])


def as_note(found: FoundModel) -> str:
    """The text of a note about a GGUF file's model."""
    graphs = {name: b64encode(data).decode() for name, data in found.graphs.items()}
    return json.dumps({"config": config_to_json(found.config), "graphs": graphs, "tokenizer": found.tokenizer})


def from_note(text: str) -> FoundModel:
    """The model that `as_note` wrote."""
    noted = json.loads(text)
    graphs = {name: b64decode(text) for name, text in noted["graphs"].items()}
    return FoundModel(config_from_json(noted["config"]), graphs, noted["tokenizer"])
