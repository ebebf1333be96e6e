"""A validator of JSON values against schemas, for tests: the plain meaning of each keyword."""

from __future__ import annotations

import ipaddress
import re
import uuid
from datetime import datetime
from typing import Any

__all__ = ["fits"]

NUMBERS = (int, float)


def fits(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether the value fits the schema."""
    if isinstance(schema, bool):
        return schema
    root = schema if root is None else root
    checks = [_general(value, schema, root)]
    if isinstance(value, dict):
        checks.append(_object(value, schema, root))
    elif isinstance(value, list):
        checks.append(_array(value, schema, root))
    elif isinstance(value, str):
        checks.append(_string(value, schema))
    elif _is("number", value):
        checks.append(_number(value, schema))
    return all(checks)


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    found: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "null": type(None),
        "number": NUMBERS,
        "integer": NUMBERS,
    }
    return isinstance(value, found[kind]) and (kind != "integer" or value == int(value))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _general(value: Any, schema: dict[str, Any], root: Any) -> bool:
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    reference = schema.get("$ref")
    target = root
    for part in (reference or "#").split("/")[1:]:
        target = target[part]
    return (
        (not types or any(_is(kind, value) for kind in types))
        and ("const" not in schema or _same(value, schema["const"]))
        and ("enum" not in schema or any(_same(value, item) for item in schema["enum"]))
        and (reference is None or fits(value, target, root))
        and all(fits(value, part, root) for part in schema.get("allOf", []))
        and ("anyOf" not in schema or any(fits(value, part, root) for part in schema["anyOf"]))
        and ("oneOf" not in schema or sum(fits(value, part, root) for part in schema["oneOf"]) == 1)
    )


def _object(value: dict[str, Any], schema: dict[str, Any], root: Any) -> bool:
    named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return (
        all(name in value for name in schema.get("required", []))
        and all(fits(item, named.get(name, others), root) for name, item in value.items())
        and len(value) >= schema.get("minProperties", 0)
        and len(value) <= schema.get("maxProperties", len(value))
    )


def _array(value: list[Any], schema: dict[str, Any], root: Any) -> bool:
    first = schema.get("prefixItems", [])
    rest = value[len(first) :]
    return (
        all(fits(item, part, root) for item, part in zip(value, first, strict=False))
        and all(fits(item, schema.get("items", True), root) for item in rest)
        and len(value) >= schema.get("minItems", 0)
        and len(value) <= schema.get("maxItems", len(value))
    )


def _string(value: str, schema: dict[str, Any]) -> bool:
    return (
        len(value) >= schema.get("minLength", 0)
        and len(value) <= schema.get("maxLength", len(value))
        and ("pattern" not in schema or re.search(schema["pattern"].replace("$", r"\Z"), value, re.ASCII) is not None)
        and ("format" not in schema or _format(value, schema["format"]))
    )


def _format(value: str, kind: str) -> bool:
    readers: dict[str, Any] = {
        "date": lambda text: datetime.strptime(text, "%Y-%m-%d"),
        "date-time": datetime.fromisoformat,
        "time": lambda text: datetime.fromisoformat(f"2024-01-01T{text}"),
        "uuid": uuid.UUID,
        "ipv4": ipaddress.IPv4Address,
        "email": lambda text: re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", text) or 1 / 0,
    }
    try:
        # datetime knows no year 0 and six digits of a second.
        readers[kind](re.sub(r"(\.\d{6})\d+", r"\1", re.sub(r"^0000", "2000", value)))
    except (ValueError, ZeroDivisionError):
        return False
    return True


def _number(value: float, schema: dict[str, Any]) -> bool:
    return (
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )
