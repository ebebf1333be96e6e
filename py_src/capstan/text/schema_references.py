"""Moves a JSON schema into another document, with its references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["moved"]

SCHEMAS_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
SCHEMAS = {
    *("items", "additionalItems", "prefixItems", "contains", "unevaluatedItems", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
}


def moved(schema: Any, place: str) -> Any:
    """The schema with each reference into its own document (`#`, `#/$defs/Node`) turned into one for a document that
    has it at `place`, such as `#/$defs/arguments`. Names and values that look like references stay."""
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            found[name] = place + value[1:]
        elif name in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            found[name] = {key: moved(inner, place) for key, inner in value.items()}
        else:
            found[name] = moved(value, place) if name in SCHEMAS else value
    return found
