"""Lists the keywords of JSON schemas that are enforced, and their valid values.

A keyword that no version of JSON Schema has is ignored, unless it looks like a misspelt one. An invalid value is
refused with a GuidanceError that names its place as a JSON pointer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any, NoReturn

from ..errors import GuidanceError
from ..model_files.bounded_json import clipped

__all__ = [
    "ANNOTATIONS",
    "TYPED",
    "TYPES",
    "TYPES_KEYWORDS",
    "Schema",
    "asks",
    "count",
    "is_a",
    "listed",
    "modern",
    "pointer",
    "refuse",
    "require_shape",
    "require_sound",
    "require_apart",
    "require_known",
    "distinguished",
    "types_of",
]

Schema = Mapping[str, Any]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"),
    *("$id", "id", "$defs", "definitions", "$anchor", "contentMediaType", "contentEncoding", "contentSchema"),
    *("discriminator", "example", "externalDocs", "xml"),
}
TYPES_KEYWORDS: dict[str, set[str]] = {
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
        "propertyNames",
    },
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
}
TYPED = set().union(*TYPES_KEYWORDS.values())
_COMBINED = {"$ref", "allOf", "anyOf", "oneOf"}
_NOT_ENFORCED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas"),
    *("dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "extends"),
    *("disallow", "divisibleBy", "x-guidance"),
}
_KNOWN = ANNOTATIONS | TYPED | _COMBINED | {"type", "enum", "const"}
_NO_CHANGE = {"minContains": 0, "unevaluatedItems": True, "unevaluatedProperties": True}
"""Keywords that are accepted only with the value at which they have no effect."""


def require_known(schema: Schema, at: str) -> None:
    for name in schema:
        if name in _NO_CHANGE and schema[name] is _NO_CHANGE[name]:
            continue
        if name in _NOT_ENFORCED:
            refuse(f"{at}/{pointer(name)}", f"{name} is not enforced", "leave it out, or express it another way")
        near = [] if name in _KNOWN else get_close_matches(name, _KNOWN - ANNOTATIONS | _NOT_ENFORCED, 1, _NEAR)
        if near:
            refuse(
                f"{at}/{pointer(name)}", f"{name} is not a keyword", f"write {near[0]}, or a name that is less like it"
            )


def asks(name: str) -> bool:
    """Whether a keyword may have an effect."""
    return name in _KNOWN | _NOT_ENFORCED and name not in ANNOTATIONS


def modern(schema: Schema) -> Any:
    """A schema in the form of the newest version: translates the forms of OpenAPI 3.0 and draft 4. A schema whose `not`
    excludes every value becomes False.
    """
    if not schema.keys() & {"nullable", "not", "exclusiveMinimum", "exclusiveMaximum"}:
        return schema
    found = dict(schema)
    if found.get("not", False) in (True, {}):
        return False
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if found.get(exclusive) is True and bound in found:
            found[exclusive] = found.pop(bound)
        elif found.get(exclusive) is False:
            del found[exclusive]
    if found.pop("nullable", False) is not True:
        return found
    if "type" in found:
        types = found["type"] if isinstance(found["type"], list) else [found["type"]]
        return {**found, "type": [*types, *([] if "null" in types else ["null"])]}
    return {"anyOf": [found, {"type": "null"}]}


_SCHEMAS_BY_NAME = {"properties", "patternProperties"}
_SCHEMA = {"additionalProperties", "items", "additionalItems", "propertyNames"}
_SCHEMAS = {"prefixItems", "allOf", "anyOf", "oneOf"}
_LISTS = {"required", "enum"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_MOST_BRANCHES = 500
_NEAR = 0.8
"""From this similarity (0 to 1) on, a name counts as a misspelt keyword."""


def require_sound(value: Any, at: str) -> None:
    """Raise GuidanceError unless all texts can be encoded and all numbers are finite."""
    if isinstance(value, str) and not all(c < "\ud800" or c > "\udfff" for c in value):
        refuse(
            at, f"{clipped(value)} has half of a surrogate pair, which UTF-8 cannot encode", "write whole characters"
        )
    if isinstance(value, float) and not isfinite(value):
        refuse(at, f"{value!r}", "write a number that JSON has")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            require_sound(name, at)
            require_sound(inner, f"{at}/{pointer(name)}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            require_sound(inner, f"{at}/{index}")


def require_shape(schema: Any, at: str) -> None:
    """Raise GuidanceError unless the enforced keywords have values of their types, including those of inner schemas. A
    definition is checked at the first reference.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        refuse(at, clipped(schema), "a schema is an object, true or false")
    types_of(schema, at)
    for name, value in schema.items():
        place = f"{at}/{pointer(name)}"
        if name in _SCHEMAS_BY_NAME:
            if not isinstance(value, Mapping):
                refuse(place, clipped(value), "it must be an object")
            for key, inner in value.items():
                require_shape(inner, f"{place}/{pointer(key)}")
        elif name == "items" and isinstance(value, list):
            for index, inner in enumerate(value):
                require_shape(inner, f"{place}/{index}")
        elif name in _SCHEMA:
            require_shape(value, place)
        elif name in _SCHEMAS | _LISTS:
            for index, inner in enumerate(listed(schema, name, at)):
                if name in _SCHEMAS:
                    require_shape(inner, f"{place}/{index}")
                elif name == "required" and not isinstance(inner, str):
                    refuse(f"{place}/{index}", clipped(inner), "it must be a property's name")
            if name == "oneOf" and len(value) > _MOST_BRANCHES:
                refuse(
                    place, f"{len(value)} branches", f"at most {_MOST_BRANCHES} can be distinguished: use anyOf or enum"
                )
        elif name in _NUMBERS and not (isinstance(value, bool) and name.startswith("exclusive")):
            if isinstance(value, bool) or not isinstance(value, int | float):
                refuse(place, clipped(value), "it must be a number")
        elif name in _COUNTS:
            count(schema, name, at, 0)
        elif name in ("pattern", "$ref", "format") and not isinstance(value, str):
            refuse(place, clipped(value), "it must be a string")
        elif name in ("nullable", "uniqueItems") and not isinstance(value, bool):
            refuse(place, clipped(value), "it must be true or false")


def types_of(schema: Schema, at: str) -> list[str]:
    """The types that the schema names, or all types."""
    given = schema.get("type", list(TYPES))
    types = given if isinstance(given, list) else [given]
    for kind in types:
        if kind not in TYPES:
            refuse(f"{at}/type", clipped(kind), f"the types are {', '.join(TYPES)}")
    if not types:
        refuse(f"{at}/type", "[]", "no value has no type")
    return types


def is_a(kind: str, value: Any) -> bool:
    """Whether a value has the type."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")


def distinguished(parts: Sequence[Any]) -> Sequence[Any]:
    """The branches. A property whose fixed values differ in each branch becomes required, so that it distinguishes
    them.
    """
    if len(parts) < 2 or not all(isinstance(part, Mapping) and part.get("type") == "object" for part in parts):
        return parts
    for name in parts[0].get("properties", {}):
        tags = [part.get("properties", {}).get(name) for part in parts]
        values = [fixed(tag) if isinstance(tag, Mapping) else None for tag in tags]
        texts = [json.dumps(value, sort_keys=True) for found in values for value in found or ()]
        if all(values) and len(set(texts)) == len(texts):
            return [{**part, "required": [*{**dict.fromkeys(part.get("required", ())), name: None}]} for part in parts]
    return parts


def require_apart(parts: Sequence[Any], at: str) -> None:
    """Raise GuidanceError unless types or fixed values show that no value fits two of the branches."""
    for index, a in enumerate(parts):
        for other, b in enumerate(parts[:index]):
            if not apart(a, b):
                refuse(f"{at}/{index}", f"a value may fit {at}/{other} too", "use anyOf, or make them differ in type")


def apart(a: Any, b: Any) -> bool:
    """Whether certainly no value fits both."""
    if a is True or b is True or not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return False
    values = [fixed(a), fixed(b)]
    if values[0] is not None and values[1] is not None:
        texts = [{json.dumps(value, sort_keys=True) for value in found} for found in values if found is not None]
        return not texts[0] & texts[1]
    types = [{"integer" if kind == "number" else kind for kind in types_of(schema, "#")} for schema in (a, b)]
    if "type" in a and "type" in b and not types[0] & types[1]:
        return True
    if types[0] == types[1] == {"object"}:
        shared = set(a.get("required", ())) & set(b.get("required", ()))
        return any(apart(a.get("properties", {}).get(n, True), b.get("properties", {}).get(n, True)) for n in shared)
    return False


def fixed(schema: Schema) -> list[Any] | None:
    """The values that the schema lists."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def listed(schema: Schema, name: str, at: str) -> list[Any]:
    found = schema[name]
    if not isinstance(found, list) or (not found and name != "required" and name != "prefixItems"):
        refuse(f"{at}/{name}", clipped(found), "it must be a list with at least one entry")
    return found


def count(schema: Schema, name: str, at: str, default: int | None) -> int | None:
    found = schema.get(name, default)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 0):
        refuse(f"{at}/{name}", clipped(found), "it must be an integer of at least 0")
    return found


def pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def refuse(at: str, what: str, remedy: str) -> NoReturn:
    raise GuidanceError(f"json_schema {at}: {what}; {remedy}")
