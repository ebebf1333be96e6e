"""Merges two JSON schemas into one schema, for the values that fit both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from .schema_keywords import asks, modern

__all__ = ["MergeError", "merged"]

_GREATER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_SMALLER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_OBJECT = ("properties", "patternProperties", "additionalProperties")
_TEXTS = ("pattern", "format")


class MergeError(Exception):
    """Raised if no schema of supported keywords equals two schemas together; the message is the reason."""


def merged(a: Any, b: Any) -> Any:
    """A schema for values that fit both. Raises MergeError.

    Several patterns or formats become a list.
    """
    a, b = (modern(given) if isinstance(given, Mapping) else given for given in (a, b))
    if a is False or b is False:
        return False
    if a is True or a == {}:
        return b
    if b is True or b == {}:
        return a
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        raise MergeError(f"{a if not isinstance(a, Mapping) else b!r} is not a schema")
    found = dict(a)
    for name, value in b.items():
        if name in _OBJECT:
            continue
        if name not in a or not asks(name) or a[name] == value:
            found.setdefault(name, value)
        elif name in _GREATER | _SMALLER:
            found[name] = max(a[name], value) if name in _GREATER else min(a[name], value)
        elif name == "required":
            found[name] = [*a[name], *(key for key in value if key not in a[name])]
        elif name == "type":
            found[name] = _types(a[name], value)
        elif name in _TEXTS:
            found[name] = [*dict.fromkeys([*_several(a[name]), *_several(value)])]
        elif name == "multipleOf":
            found[name] = _multiple(a[name], value)
        elif name == "uniqueItems":
            found[name] = True
        elif name == "propertyNames" or (
            name == "items" and not any(isinstance(each["items"], list) or "prefixItems" in each for each in (a, b))
        ):
            found[name] = merged(a[name], value)
        elif name not in ("enum", "const"):
            raise MergeError(f"{name} is in two schemas that must both hold")
    values = [listed for listed in (_listed(a), _listed(b)) if listed is not None]
    if len(values) == 2:
        found.pop("const", None)
        known = {json.dumps(value, sort_keys=True) for value in values[1]}
        found["enum"] = [value for value in values[0] if json.dumps(value, sort_keys=True) in known]
        if not found["enum"]:
            raise MergeError("no value is listed in both")
    if any(name in schema for name in _OBJECT for schema in (a, b)):
        _merge_properties(found, a, b)
    return found


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _multiple(a: float, b: float) -> float:
    if min(a, b) <= 0:
        raise MergeError("multipleOf is not above 0")
    one, other = Fraction(repr(a)), Fraction(repr(b))
    least = Fraction(lcm(one.numerator, other.numerator), gcd(one.denominator, other.denominator))
    return least.numerator if least.denominator == 1 else float(least)


def _merge_properties(found: dict[str, Any], a: Any, b: Any) -> None:
    others = [schema.get("additionalProperties", True) for schema in (a, b)]
    patterns = [schema.get("patternProperties", {}) for schema in (a, b)]
    if any(patterns):
        if any(other is not True and other != {} for other in others):
            raise MergeError("patternProperties and additionalProperties are in two schemas that must both hold")
        found["patternProperties"] = {
            pattern: merged(patterns[0].get(pattern, True), patterns[1].get(pattern, True))
            for pattern in {**patterns[0], **patterns[1]}
        }
    mine, theirs = a.get("properties", {}), b.get("properties", {})
    found["properties"] = {
        name: merged(mine.get(name, others[0]), theirs.get(name, others[1]))
        for name in [*mine, *(name for name in theirs if name not in mine)]
    }
    found["additionalProperties"] = merged(others[0], others[1])


def _types(a: Any, b: Any) -> list[str]:
    mine, theirs = (list(given) if isinstance(given, list) else [given] for given in (a, b))
    found = [kind for kind in mine if kind in theirs or (kind == "integer" and "number" in theirs)]
    found += [kind for kind in theirs if kind == "integer" and "number" in mine and kind not in found]
    if not found:
        raise MergeError(f"no type is both of {mine} and of {theirs}")
    return found


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")
