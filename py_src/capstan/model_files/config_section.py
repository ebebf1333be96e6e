"""Reads fields of a model's configuration. Every error names the file and the JSON path of the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .bounded_json import NotJsonError, read_json
from .file_names import why_not_below

__all__ = ["Section", "file_name", "parse_object"]

REMEDY = "correct the file, or export the model again with onnxruntime-genai's model builder"
JSON_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
MOST = 1 << 24
LARGEST = {"num_hidden_layers": 4096, "num_attention_heads": 65536, "num_key_value_heads": 65536}
"""The largest count of things that are listed one by one; other sizes are limited by MOST."""


class Section:
    """One JSON object and its path in the file; its readers raise ConfigError with the path."""

    def __init__(self, file: str, path: str, value: Mapping[str, Any]) -> None:
        self.file, self.path, self.value = file, path, value

    def where(self, key: str) -> str:
        return f"{self.file}: {self.path}.{key}" if self.path else f"{self.file}: {key}"

    def error(self, key: str, expected: str, remedy: str = REMEDY) -> ConfigError:
        if key not in self.value:
            return ConfigError(f"{self.where(key)}: missing, expected {expected}; {remedy}")
        shown = json.dumps(self.value[key], ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ConfigError(f"{self.where(key)}: expected {expected}, got {shown}; {remedy}")

    def section(self, key: str, *, optional: bool = False) -> Section:
        value = self.value.get(key)
        if value is None and optional:
            return Section(self.file, f"{self.path}.{key}".lstrip("."), {})
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Section(self.file, f"{self.path}.{key}".lstrip("."), value)

    def positive(self, key: str) -> int:
        value = whole(self.value.get(key))
        if type(value) is not int or not 1 <= value <= (most := LARGEST.get(key, MOST)):
            raise self.error(key, "a positive integer" if type(value) is not int or value < 1 else f"at most {most}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, "a non-empty string")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token id, or None for an id outside of the vocabulary, which onnxruntime-genai also allows."""
        value = whole(self.value.get(key))
        if value is not None and type(value) is not int:
            raise self.error(key, f"a token id from 0 to {vocab_size - 1}")
        return value if is_token(value, vocab_size) else None

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self.value.get(key)
        if value is None:
            return ()
        ids = [whole(item) for item in (value if isinstance(value, list) else [value])]
        if not all(is_token(item, vocab_size) for item in ids):
            raise self.error(key, f"a token id from 0 to {vocab_size - 1}, or an array of them")
        return tuple(dict.fromkeys(ids))

    def pattern(self, key: str, default: str) -> str:
        value = self.text(key, default)
        if value.count("%d") != 1:
            raise self.error(key, 'a name with one "%d" for the layer')
        return value


def whole(value: Any) -> Any:
    """The int that a float like 512.0 equals; any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_token(value: object, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size


def parse_object(data: str | bytes, name: str) -> dict[str, Any]:
    """A file's JSON object. Raises ConfigError with line and column for other content."""
    try:
        value = read_json(data)
    except NotJsonError as error:
        raise ConfigError(f"{name}: {error}; {REMEDY}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: expected an object, got {JSON_NAMES.get(type(value), 'null')}; {REMEDY}")
    return value


def file_name(section: Section, key: str, default: str | None = None) -> str:
    """The name of a file below the model's folder."""
    value = section.text(key, default)
    why = why_not_below(value)
    if why is not None:
        raise section.error(key, f"a file below the model's folder ({why})")
    return value
