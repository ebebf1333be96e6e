"""JSON that others wrote is read within bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capstan.model_files.bounded_json import MOST_DEPTH, NotJsonError, clipped, read_json


def nested(depth: int, kinds: str) -> str:
    """Arrays and objects in turn."""
    opened = ["[" if kinds[place % len(kinds)] == "[" else '{"k": ' for place in range(depth)]
    closed = ["]" if kinds[place % len(kinds)] == "[" else "}" for place in reversed(range(depth))]
    return "".join(opened) + "1" + "".join(closed)


@pytest.mark.parametrize("kinds", ["[", "{", "[{", "{{["])
def test_as_deep_as_allowed_and_one_more(kinds: str) -> None:
    text = nested(MOST_DEPTH, kinds)
    assert read_json(text) == json.loads(text)
    for beside in ("", ", [], {}, [[[]]]"):
        with pytest.raises(NotJsonError, match=f"nested more than {MOST_DEPTH} levels deep"):
            read_json("[" + text + beside + "]")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 70 + "]" * 3])
def test_what_is_never_closed(text: str) -> None:
    with pytest.raises(NotJsonError, match="nested more than"):
        read_json(text)


@pytest.mark.parametrize(
    "value",
    [
        ["[" * 1000, "{" * 1000],
        {"[" * 100: "\\\\[[[" * 100, "\\": "{" * 100},
        [[["\\\\", "[", '"', "\\\\\\"]]] * 100,
        [[1, 2], {"a": [3]}] * 200,
        "text",
        1.5e300,
    ],
)
def test_brackets_in_strings_and_one_beside_another_are_not_deep(value: Any) -> None:
    assert read_json(json.dumps(value)) == value
    assert read_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff{}", "byte 0 is not UTF-8"),
        ("\ud800", "character 0 is half of a surrogate pair"),
        (b"[1,\n x]", "line 2, column 2: not JSON"),
        ("1" * 5000, "an integer of thousands of digits"),
        ("", "line 1, column 1: not JSON"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text: str | bytes, reason: str) -> None:
    with pytest.raises(NotJsonError, match=reason):
        read_json(text)


def test_more_bytes_than_are_read() -> None:
    assert read_json("[1]", most_bytes=3) == [1]
    with pytest.raises(NotJsonError, match="4 bytes; at most 3 are read"):
        read_json("[12]", most_bytes=3)


def test_a_value_in_a_message_is_clipped() -> None:
    assert clipped("a" * 10) == "'aaaaaaaaaa'"
    assert len(clipped("a" * 1_000_000)) == 60
