"""Messages and tools are read before a template sees them: each fault has its place."""

from __future__ import annotations

from typing import Any

import pytest

from capstan.errors import OptionError
from capstan.text.messages import read_messages, read_tools

CALL = {"type": "function", "function": {"name": "add", "arguments": {}}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a", "anything": 5}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "1", "name": "add"}],
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [{"role": "assistant", "thinking": "hm"}],
        '[{"role": "user", "content": ""}]',
        ({"role": "user", "content": "a", "name": None},),
    ],
)
def test_messages_of_every_form_that_templates_know_are_taken(messages: Any) -> None:
    assert len(read_messages("messages", messages)) >= 1


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{}], r"messages\[0\].role: missing"),
        ([{"role": 5, "content": "a"}], r"messages\[0\].role is 5; it must be a text that is not empty"),
        ([{"role": "", "content": "a"}], r"messages\[0\].role is ''"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], r"messages\[1\].role: missing"),
        ([{"role": "user"}], r"messages\[0\].content: missing; give a text"),
        ([{"role": "user", "content": None}], r"messages\[0\].content: missing"),
        ([{"role": "assistant"}], r"messages\[0\].content: missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is 5; it must be a text or a list of objects"),
        ([{"role": "user", "content": True}], r"messages\[0\].content is True"),
        ([{"role": "user", "content": {"a": 1}}], r"messages\[0\].content is \{'a': 1\}"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\].content is \['a'\]"),
        ([{"role": "user", "content": b"a"}], r"messages\[0\].content is b'a'"),
        ([{"role": "assistant", "tool_calls": CALL}], r"messages\[0\].tool_calls is .*; it must be a list of objects"),
        ([{"role": "tool", "content": "a", "tool_call_id": 5}], r"messages\[0\].tool_call_id is 5; it must be a text"),
        (["hello"], "messages: expected a list of objects"),
        ({"role": "user", "content": "a"}, "messages: expected a list of objects"),
        ('{"role": "user"}', "messages: expected a list of objects"),
        ("hello", "messages: .*JSON"),
    ],
)
def test_a_message_of_another_form_is_refused_with_its_place(messages: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_messages("messages", messages)


@pytest.mark.parametrize("tools", [[5], {}, "5", "{", [[]]])
def test_tools_are_a_list_of_objects(tools: Any) -> None:
    with pytest.raises(OptionError, match="^tools: "):
        read_tools("tools", tools)
