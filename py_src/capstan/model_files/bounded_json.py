"""Reads foreign JSON within bounds: size and depth are checked before it is parsed.

A parser recurses for each array and object, and a WebAssembly stack overflow ends the worker: Python in the page never
answers again.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MOST_BYTES", "MOST_DEPTH", "NotJsonError", "clipped", "read_json"]

MOST_BYTES = 64 << 20
"""The longest text in bytes; the largest tokenizers and lists of shards have about 20 MB."""
MOST_DEPTH = 64
"""The deepest nesting of arrays and objects around a value."""

SHOWN = 60
"""Characters of a value in a message."""

ONE_KIND = bytes.maketrans(b"{}", b"[]")
OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
"""Bytes that do not affect the nesting of a text."""


class NotJsonError(ValueError):
    """The text is not JSON; the message has the mistake and its place."""


def read_json(text: str | bytes, most_bytes: int = MOST_BYTES) -> Any:
    """The value of a text, UTF-8 with or without a byte order mark. Raises NotJsonError."""
    if len(text) > most_bytes:
        raise NotJsonError(f"it has {len(text)} bytes; at most {most_bytes} are read")
    try:
        data = text if isinstance(text, bytes) else text.encode()
        string = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise NotJsonError(f"byte {error.start} is not UTF-8; it must be JSON text") from error
    except UnicodeEncodeError as error:
        raise NotJsonError(f"character {error.start} is half of a surrogate pair, which UTF-8 cannot encode") from error
    if is_deeper(data, MOST_DEPTH):
        raise NotJsonError(f"it is nested more than {MOST_DEPTH} levels deep")
    try:
        return json.loads(string)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from error
    except ValueError as error:
        raise NotJsonError("it has an integer of thousands of digits, which no field allows") from error


def is_deeper(data: bytes, most: int) -> bool:
    """Whether brackets outside of strings, closed or not, are nested deeper than `most`."""
    if data.count(b"[") + data.count(b"{") <= most:
        return False
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(ONE_KIND, OTHERS)
    # Pairs of quotes are removed first: they do not change the text outside of strings, and leave fewer for the split.
    left = b"".join(plain.replace(b'""', b"").split(b'"')[::2])
    for _ in range(most):
        shorter = left.replace(b"[]", b"")  # Remove the innermost brackets.
        if shorter == left:
            break
        left = shorter
    return left.count(b"[") > most or b"[]" in left


def clipped(value: object) -> str:
    """A value in the form for messages: its first characters."""
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
