"""A tape is replayed only under the key of its recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.errors import TapeKeyError
from capstan.tape import TapeKey

KEY = TapeKey(model="/models/nano/", batch=1, max_length=256, adapter="google swiftshader", options="tape")


def test_an_equal_key_passes() -> None:
    KEY.require(replace(KEY))


@pytest.mark.parametrize(
    ("field", "value", "expected", "got"),
    [
        ("model", "/models/other/", "'/models/nano/'", "'/models/other/'"),
        ("batch", 2, "1", "2"),
        ("max_length", 512, "256", "512"),
        ("adapter", "nvidia hopper", "'google swiftshader'", "'nvidia hopper'"),
        ("options", "ort", "'tape'", "'ort'"),
    ],
)
def test_a_mismatch_raises_with_expected_and_got(field: str, value: Any, expected: str, got: str) -> None:
    with pytest.raises(TapeKeyError) as raised:
        KEY.require(replace(KEY, **{field: value}))
    assert str(raised.value) == f"this tape was recorded for {field}={expected}, got {got}; record a tape for {got}"
