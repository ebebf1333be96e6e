"""Whether the values that a schema lists fit the schema's other keywords."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .json_strings import strings
from .schema_keywords import TYPES_KEYWORDS, Schema, is_a, refuse, types_of

__all__ = ["fitting"]


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
