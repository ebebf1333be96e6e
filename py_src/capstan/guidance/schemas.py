"""Resolves schemas within a schema: references, merged schemas, and the values or names that a schema allows if these
are few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .dfa import Dfa
from .grammar import Choice, Node, Text
from .json_strings import strings
from .merging import MergeError, merged
from .nfa import determined
from .schema_keywords import (
    TYPES_KEYWORDS,
    Schema,
    asks,
    is_a,
    listed,
    modern,
    refuse,
    require_known,
    require_shape,
    types_of,
)

__all__ = ["Schemas", "fitting"]

MOST_VALUES = 200
"""The most values of an array with unique items."""


class Schemas:
    """A schema, its references, and merged schemas."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._shaped: set[int] = set()
        """Parts of the schema whose keywords were checked."""

    def merged(self, a: Any, b: Any, at: str) -> Any:
        """The schema of the values that fit both."""
        try:
            return merged(a, b)
        except MergeError as error:
            refuse(at, str(error), "write one schema for both")

    def resolved(self, schema: Any, at: str) -> Any:
        """The schema or, if it is only a reference, its target."""
        seen = []
        while isinstance(schema, Mapping) and "$ref" in schema and not any(map(asks, schema.keys() - {"$ref"})):
            if schema["$ref"] in seen:
                refuse(f"{at}/$ref", f"{schema['$ref']!r}", "it refers to itself")
            seen.append(schema["$ref"])
            schema = self.target(schema["$ref"], f"{at}/$ref")
        return modern(schema) if isinstance(schema, Mapping) else schema

    def flat(self, schema: Any, at: str) -> Any:
        """The schema without `$ref` and `allOf`."""
        schema = self.resolved(schema, at)
        followed: set[str] = set()
        while isinstance(schema, Mapping) and schema.keys() & {"$ref", "allOf"}:
            name = "$ref" if "$ref" in schema else "allOf"
            parts = [schema[name]] if name == "$ref" else listed(schema, name, at)
            if name == "$ref" and schema[name] in followed:
                refuse(f"{at}/$ref", f"{schema[name]!r}", "it refers to itself")
            followed.update(parts if name == "$ref" else ())
            schema = {key: value for key, value in schema.items() if key != name}
            for index, part in enumerate(parts):
                place = f"{at}/{name}" if name == "$ref" else f"{at}/{name}/{index}"
                found = self.target(part, place) if name == "$ref" else self.resolved(part, place)
                schema = self.merged(schema, found, place)
        return schema

    def target(self, reference: Any, at: str) -> Any:
        """The schema that a reference names."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            refuse(at, f"{reference!r}", "only references within the schema, such as #/$defs/name, are followed")
        found = self._root
        for part in reference[2:].split("/") if reference != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                refuse(at, f"{reference!r}", f"the schema has no {name!r} there")
        if id(found) not in self._shaped:
            self._shaped.add(id(found))
            require_shape(found, reference)
        return found

    def alternatives(self, schema: Schema, name: str, at: str) -> list[tuple[Any, str]]:
        """The schema with each branch of its anyOf or oneOf, and the place of the branch."""
        rest = {key: value for key, value in schema.items() if key != name}
        branches = listed(schema, name, at)
        places = [f"{at}/{name}/{index}" for index in range(len(branches))]
        parts = [self.resolved(part, place) for part, place in zip(branches, places, strict=True)]
        if name == "anyOf" and not any(map(asks, rest)):
            # References stay: their rules are shared.
            parts = [part if found is not False else False for part, found in zip(branches, parts, strict=True)]
            rest = {}
        kept = [(part, place) for part, place in zip(parts, places, strict=True) if part is not False]
        if not kept:
            refuse(f"{at}/{name}", "false alone", "nothing fits it")
        return [(self.merged(rest, part, place), place) for part, place in kept]

    def names(self, schema: Any, at: str) -> list[str] | Dfa | None:
        """The names that a schema allows; None for all."""
        schema = self.flat(schema, at)
        if schema is False:
            return []
        if schema is True or not any(map(asks, schema)):
            return None
        require_known(schema, at)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                parts = [self.names(part, place) for part, place in self.alternatives(schema, name, at)]
                if None in parts:
                    return None
                if all(isinstance(part, list) for part in parts):
                    return [*dict.fromkeys(each for part in parts if isinstance(part, list) for each in part)]
                nodes: list[Node] = [part.machine() for part in parts if isinstance(part, Dfa)]
                nodes += [Text(each) for part in parts if isinstance(part, list) for each in part]
                return determined(Choice(tuple(nodes)))
        values = self.values(schema, at)
        if values is not None:
            return [value for value in values if isinstance(value, str)]
        if "string" not in types_of(schema, at):
            return []
        return strings(schema, at) if schema.keys() & TYPES_KEYWORDS["string"] else None

    def values(self, schema: Any, at: str) -> list[Any] | None:
        """The values that fit a schema; None if they are too many to list."""
        schema = self.flat(schema, at)
        if not isinstance(schema, Mapping):
            return [] if schema is False else None
        for name in ("anyOf", "oneOf"):
            if name in schema:
                parts = [self.values(part, place) for part, place in self.alternatives(schema, name, at)]
                found = [value for part in parts for value in part or ()]
                return None if None in parts else [*{json.dumps(each): each for each in found}.values()]
        if "const" in schema or "enum" in schema:
            name = "const" if "const" in schema else "enum"
            return fitting([schema["const"]] if name == "const" else listed(schema, "enum", at), schema, at, name)
        types = types_of(schema, at)
        if not {*types} <= {"boolean", "null", "integer"}:
            return None
        found = [*([None] if "null" in types else []), *([False, True] if "boolean" in types else [])]
        if "integer" in types:
            low = max((schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema), default=None)
            high = min((schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema), default=None)
            if low is None or high is None or high - low >= MOST_VALUES:
                return None
            found += fitting([*range(int(low) - 1, int(high) + 2)], schema, at, "minimum")
        return found


def fitting(values: list[Any], schema: Schema, at: str, name: str) -> list[Any]:
    """The values of a keyword that fit the schema."""
    types = types_of(schema, at)
    return [value for value in values if any(is_a(kind, value) for kind in types) and _fits(value, schema, at, name)]


def _fits(value: Any, schema: Schema, at: str, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        return not schema.keys() & TYPES_KEYWORDS["string"] or strings(schema, at).matches(value)
    if isinstance(value, int | float):
        exact = Fraction(repr(value))
        bounds = {key: Fraction(repr(schema[key])) for key in TYPES_KEYWORDS["number"] if key in schema}
        return (
            exact >= bounds.get("minimum", exact)
            and exact <= bounds.get("maximum", exact)
            and ("exclusiveMinimum" not in bounds or exact > bounds["exclusiveMinimum"])
            and ("exclusiveMaximum" not in bounds or exact < bounds["exclusiveMaximum"])
            and not ("multipleOf" in bounds and exact % bounds["multipleOf"])
        )
    asked = sorted(schema.keys() & TYPES_KEYWORDS["array" if isinstance(value, list) else "object"])
    if asked:
        refuse(f"{at}/{name}", f"together with {', '.join(asked)}", "leave out the values that do not fit them")
    return True
