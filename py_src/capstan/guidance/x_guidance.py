"""Reads llguidance's options at the top of a schema: the text between parts, and the meaning of oneOf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import GuidanceError
from ..model_files.bounded_json import clipped
from .grammar import Node, Repeat, Series, Text
from .json_text import FREE, Layout
from .regex import parse_regex
from .schema_keywords import pointer, refuse

__all__ = ["options_of"]

_OPTIONS = ("whitespace_flexible", "coerce_one_of", "item_separator", "key_separator", "whitespace_pattern")


def options_of(given: Any, at: str) -> tuple[Layout, bool]:
    """llguidance's options: the text between parts, and whether oneOf means anyOf."""
    if not isinstance(given, Mapping):
        refuse(at, clipped(given), "it must be an object")
    patterns: dict[str, Node] = {}
    for name, value in given.items():
        place = f"{at}/{pointer(name)}"
        if name not in _OPTIONS:
            if name == "lenient" and value is False:
                continue
            refuse(place, f"{name} is not enforced", f"the options are {', '.join(_OPTIONS)}")
        if not isinstance(value, bool if name in _OPTIONS[:2] else str):
            refuse(place, clipped(value), "it must be true or false" if name in _OPTIONS[:2] else "it must be a string")
        if isinstance(value, str):
            try:
                patterns[name] = parse_regex(value)
            except GuidanceError as error:
                raise GuidanceError(f"json_schema {place}: {error}") from error
    blank: Node = FREE.blank if given.get("whitespace_flexible", True) else Text("")
    if "whitespace_pattern" in patterns:
        blank = Repeat(patterns["whitespace_pattern"], 0, 1)
    comma, colon = patterns.get("item_separator", Text(",")), patterns.get("key_separator", Text(":"))
    layout = Layout(blank, Series((blank, comma, blank)), Series((blank, colon, blank)))
    return layout, given.get("coerce_one_of", False)
