"""Prompts by a model's chat templates: which one is taken, the keys that it sees and its own variables.

The judge is transformers.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from capstan import CapstanError, ConfigError, OptionError, Tokenizer
from capstan.genai import Tokenizer as NativeTokenizer
from capstan.loading.opening import read_configuration
from capstan.local.rust_tokenizer import LocalBackend
from capstan.text.chat_prompts import template_options
from tests.looped import looped
from tests.transformers_chats import CALLS, CONTINUED, NAMED, TOKENIZERS, TOOL, USER, answered, answers, asked

ROOT = Path(__file__).parents[2]


def tokenizer_of(template: Any, files: dict[str, str] | None = None) -> Tokenizer:
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    contents = {"tokenizer.json": json.dumps(TOKENIZERS["prepend"]), "tokenizer_config.json": json.dumps(config)}
    return Tokenizer.of_folder(LocalBackend, contents | (files or {}))


@looped("place", range(len(CALLS)))
def test_prompts_are_those_of_transformers(place: int) -> None:
    call, wanted = answered()[place]
    messages, tools, template, variables = asked(call["given"])
    tokenizer = tokenizer_of(call["template"], call["files"])
    if "error" in wanted:
        with pytest.raises(ConfigError):
            tokenizer.apply_chat_template(messages, tools, template_str=template, **variables)
    else:
        assert tokenizer.apply_chat_template(messages, tools, template_str=template, **variables) == wanted["text"]


@looped("place", range(len(CONTINUED)))
def test_a_prompt_ends_with_the_message_that_an_answer_continues(place: int) -> None:
    call, wanted = CONTINUED[place], answers()["continued"][place]
    tokenizer, (messages, *_) = tokenizer_of(call["template"]), asked(call["given"])
    if "error" in wanted:
        with pytest.raises(ConfigError, match="does not show the whole last message"):
            tokenizer.apply_chat_template(messages, continue_final_message=True)
    else:
        assert tokenizer.apply_chat_template(messages, continue_final_message=True) == wanted["text"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "has the role None and the keys none"),
        ([USER], "has the role 'user' and the keys role, content"),
        ([USER, {"role": "assistant", "content": []}], "'assistant' and the keys role, content; .* have a text"),
        ([USER, {"role": "assistant", "content": [{"type": "image"}]}], "'assistant'"),
        ([USER, {"role": "assistant", "content": "a", "tool_calls": [{}]}], "no tool_calls"),
    ],
)
def test_other_messages_than_an_assistants_text_are_not_continued(messages: list[Any], told: str) -> None:
    with pytest.raises(OptionError, match=f"continue_final_message: the last message .*{told}"):
        tokenizer_of(NAMED[0]["template"]).apply_chat_template(messages, continue_final_message=True)


def test_arguments_of_calls_may_be_json_as_in_openais_api() -> None:
    called = 0
    for call, wanted in answered():
        if "error" in wanted:
            continue
        messages, tools, _, _ = asked(call["given"])
        told = copy.deepcopy(messages)
        for function in (each["function"] for message in told for each in message.get("tool_calls") or ()):
            called += 1
            function["arguments"] = json.dumps(function["arguments"])
        if told != messages:
            assert tokenizer_of(call["template"]).apply_chat_template(told, tools) == wanted["text"]
    assert called == 2
    function = {"name": "f", "arguments": "[1"}
    kept = [{"role": "assistant", "tool_calls": [{"function": function}, {"function": {"arguments": "5"}}]}]
    shown = tokenizer_of("{{ messages[0].tool_calls | tojson }}").apply_chat_template(kept)
    assert json.loads(shown) == kept[0]["tool_calls"]


def test_templates_are_read_from_the_files_of_a_folder(tmp_path: Path) -> None:
    source = ROOT / "tests" / "fixtures" / "nano-qwen2"
    for file in source.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "additional_chat_templates").mkdir()
    for name in (
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "additional_chat_templates/a b.jinja",
    ):
        (tmp_path / name).write_text(f"{name} {{{{ messages | length }}}}")
    tokenizer = Tokenizer(read_configuration(str(tmp_path)))
    assert tokenizer.apply_chat_template([USER]) == "chat_template.jinja 1"
    assert tokenizer.apply_chat_template([USER], [TOOL]) == "additional_chat_templates/tool_use.jinja 1"
    assert tokenizer.apply_chat_template([USER], template_str="a b") == "additional_chat_templates/a b.jinja 1"
    native = NativeTokenizer(str(tmp_path))
    assert native.apply_chat_template(json.dumps([USER])) == "chat_template.jinja 1"
    prompt = native.apply_chat_template(json.dumps([USER]), tools=json.dumps([TOOL]))
    assert prompt == "additional_chat_templates/tool_use.jinja 1"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (5, "chat_template: expected a string, got int"),
        ([{"name": "default"}], r"chat_template\[0\]: expected an object with the strings name and template"),
        ([*NAMED, "x"], r"chat_template\[3\]: expected an object"),
    ],
)
def test_templates_of_another_form_are_named(template: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenizer_of(template)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"effort": 1},
            "effort: the chat template has no such variable; its variables are: reasoning_effort, thinking",
        ),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs has tools, which is a separate option"),
        (
            {"thinking": True, "chat_template_kwargs": {"thinking": False}},
            "chat_template_kwargs has thinking, which is",
        ),
        (
            {"chat_template_kwargs": {"template_str": "x"}},
            "chat_template_kwargs has template_str, which is a separate option",
        ),
    ],
)
def test_variables_that_a_template_does_not_know_are_refused(given: dict[str, Any], message: str) -> None:
    template = (
        "{{ bos_token }}{% set x = 1 %}{{ x }}{% macro m(y) %}{{ y }}{{ thinking }}{% endmacro %}{{ m(messages) }}"
        "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'low' %}{% endif %}{{ reasoning_effort }}"
    )
    with pytest.raises(OptionError, match=message):
        tokenizer_of(template).apply_chat_template(
            [USER], **(template_options(given) if "chat_template_kwargs" in given else given)
        )


def test_thinking_and_its_variable_are_one_option() -> None:
    tokenizer = tokenizer_of("{{ enable_thinking }} {{ thinking }}")
    assert tokenizer.apply_chat_template([USER], thinking=False) == "False False"
    assert tokenizer.apply_chat_template([USER], **template_options({"chat_template_kwargs": {"thinking": True}})) == (
        "True True"
    )
    with pytest.raises(CapstanError, match="thinking and enable_thinking have the same meaning; give one of them"):
        tokenizer.apply_chat_template([USER], thinking=False, enable_thinking=True)
    with pytest.raises(OptionError, match="thinking is True, but the chat template has none of the variables"):
        tokenizer_of("{{ 'thinking' }}").apply_chat_template([USER], thinking=True)
