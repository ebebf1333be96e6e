"""The fixtures' configurations and graphs, whose weights are not opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capstan.model_files.genai_config import GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config

__all__ = ["MODELS", "bytes_of", "config_of", "no_weights"]

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = sorted(path.parent.name for path in FIXTURES.glob("*/genai_config.json"))


async def no_weights(location: str) -> Any:
    raise AssertionError(f"{location} was opened")


def config_of(model: str) -> GenaiConfig:
    return parse_genai_config((FIXTURES / model / "genai_config.json").read_bytes(), model)


def bytes_of(model: str) -> bytes:
    return (FIXTURES / model / "model.onnx").read_bytes()
