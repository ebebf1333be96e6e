"""The results that tests/browser/scripts/device_operations.py must find on every device."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["check_conversions", "check_masks", "check_refusals"]


def check_masks(found: dict[str, Any]) -> None:
    for dtype in ("int64", "int32"):
        first, second, positions = found[dtype]
        assert first == [*[1, 1, 1], *[7] * 6, *[7] * 9, *[7] * 4, *[0] * 5], "only what changed was touched"
        assert second == [*[1] * 5, *[7] * 4, *[0, 0], *[7] * 7, *[7] * 4, *[1] * 5]
        assert positions == [0, 1, 2, 3, 5, 6, 7, 8, -1, 0, 1, 2]


def check_conversions(found: dict[str, str]) -> None:
    expected = {
        "float32 float16": struct.pack("<4e", 1.0, -65504.0, float("inf"), 2.0**-24),
        "float16 float32": struct.pack("<4f", 1.0, -65504.0, 2.0**-24, -0.0),
        "float32 int64": struct.pack("<4q", 1, -1, 2**40, 0),
        "int64 float32": struct.pack("<4f", 1.0, -1.0, 2.0**53, 0.0),
        "int64 int32": struct.pack("<4i", 1, -1, 5, -(2**31)),
        "int32 uint32": struct.pack("<4I", 1, 2**32 - 1, 2**31 - 1, 2**31),
    }
    assert found == {name: data.hex() for name, data in expected.items()}


def check_refusals(found: dict[str, str]) -> None:
    kinds = {name: text.split(":")[0] for name, text in found.items() if name != "kept"}
    assert kinds == {
        "outside": "BufferMismatchError",
        "outside a span": "BufferMismatchError",
        "lengths": "BufferMismatchError",
        "data": "BufferMismatchError",
        "foreign": "BufferMismatchError",
        "closed": "ClosedError",
        "cast": "BindingError",
        "mask": "BindingError",
        "positions": "BindingError",
        "out": "BufferMismatchError",
        "closed read": "ClosedError",
    }
    assert "12 to 20" in found["outside"]
    assert "16" in found["outside"]
    assert "'foreign'" in found["foreign"]
    assert "float64" in found["cast"]
    assert found["kept"] == bytes(range(16)).hex()
