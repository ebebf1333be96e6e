"""Converts the arguments and the results of calls into the JavaScript engine: JSON, and arrays of bytes and numbers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from .js_errors import typed_errors
from .own_host import capstan_host

__all__ = ["arriving", "numbers", "to_json"]


def _plain(value: Any) -> Any:
    """Converts a value that JSON does not know to a dict (dataclasses and mappings) or a list."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else list(value)


to_json = json.JSONEncoder(default=_plain).encode
"""The JSON of a value; dataclasses are objects, other sequences arrays."""


def numbers(found: Any) -> array[float]:
    """Copy the numbers of a Float64Array into a Python array."""
    with typed_errors():
        return array("d", found.to_bytes())


async def arriving(promise: Any) -> Sequence[float]:
    """Await the numbers of a burst, which is already under way. The time of their arrival is inserted as the fifth
    number.
    """
    with typed_errors():
        found = await promise
        entered = capstan_host.now()
        described = numbers(found)
    described.insert(4, entered)
    return described
