"""A page's requests are read on CPython as in the page: whole ones are taken, others are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capstan.errors import OptionError
from capstan.page.requests import read_request

EXEC = {"kind": "exec", "source": "", "filename": "a.py", "argv": ["a.py"], "models": {}, "files": {}}
CHAT: dict[str, Any] = {
    "kind": "chat",
    "model": "/models/nano/",
    "dtype": None,
    "device": "auto",
    "capture": None,
    "run_ahead": None,
    "messages": [],
    "max_length": None,
    "max_new_tokens": 5,
    "search": {},
}


@pytest.mark.parametrize("request_", [EXEC, CHAT, {"kind": "memory"}, {**CHAT, "recoveries": 0, "timeline": True}])
def test_a_whole_request_is_taken_as_it_is(request_: dict[str, Any]) -> None:
    assert read_request(json.dumps(request_)) == request_


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([], r"request: \[\], expected an object"),
        ({"kind": "walk"}, "a request's kind is 'walk'; it must be one of load, generate, chat"),
        ({"kind": "end_session"}, "session: missing in the request 'end_session'"),
        ({**CHAT, "max_new_tokens": True}, "max_new_tokens is True; it must be a whole number or null"),
        ({**CHAT, "max_new_tokens": 1.5}, "max_new_tokens is 1.5; it must be a whole number or null"),
        ({**CHAT, "timeline": 1}, "timeline is 1; it must be true or false or null"),
        ({**CHAT, "device": None}, "device is None; it must be a string"),
        ({**EXEC, "argv": ["a.py", 1]}, r"argv is \['a.py', 1\]; there must be strings in it"),
    ],
)
def test_another_request_is_refused(request_: object, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_request(json.dumps(request_))
