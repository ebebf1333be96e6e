"""Chat templates against Jinja2 itself, set up as transformers sets it up, and their budget."""

from __future__ import annotations

import jinja2
import pytest

from capstan.text import chat_template
from capstan.text.chat_template import render
from tests.chat_templates import CHATS, ENDLESS, TEMPLATES, VARIABLES, oracle, told
from tests.looped import looped


@looped("template", TEMPLATES)
def test_values_print_and_errors_read_as_in_jinja2(template: str) -> None:
    assert told(render, template, VARIABLES) == oracle(template, VARIABLES)


@looped("template", CHATS)
def test_a_conversation_reads_as_in_jinja2(template: str) -> None:
    for generation in (True, False):
        for tools in (None, VARIABLES["tools"]):
            given = {**VARIABLES, "tools": tools, "add_generation_prompt": generation}
            assert told(render, template, given) == oracle(template, given)


def test_a_marked_answer_is_rendered_as_a_scope() -> None:
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert render(template, {}) == "21"


@pytest.fixture
def less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_WORK", chat_template.MOST_WORK // 20)


@looped("template", ENDLESS)
def test_a_template_without_end_is_refused_at_once_and_the_next_one_rendered(template: str, less_work: None) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError, RecursionError, jinja2.TemplateError)):
        render(template, {})
    assert render("{{ [1] }}", {}) == "[1]"


@looped(
    "case",
    [
        (ENDLESS[0], r"it takes \d+ characters \(an item counts as 100\); at most 100000000 are allowed: shorten"),
        ("{{ 'x' * 10 ** 12 }}", r"a value of 1000000000000 characters; at most 10000000 are allowed: make it"),
        ("{{ 9 ** (10 ** 9) }}", r"a number of \d+ bits; at most 4300 digits are allowed: make it smaller"),
        ("{{ 1.5 | round(9999) }}", r"round is given 9999; at most 4300 is allowed: make it smaller"),
        ("x" * 200_001, r"it has 200001 characters; at most 200000 are read: shorten it"),
    ],
)
def test_a_refusal_has_the_value_the_limit_and_the_remedy(case: tuple[str, str]) -> None:
    template, message = case
    with pytest.raises(ValueError, match=message):
        render(template, {})


def test_a_long_conversation_is_within_the_budget(less_work: None) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 800} for i in range(500)]
    for template in CHATS:
        assert len(render(template, {**VARIABLES, "messages": messages})) > 1_000_000
    asks = "{% for each in messages %}{% if tools is not none %}{{ each.role }}{% endif %}{% endfor %}"
    assert len(render(asks, {"messages": messages, "tools": ["x" * 1_000_000]})) > 3_000


def test_a_long_conversation_does_not_let_a_template_double(less_work: None) -> None:
    messages = [{"role": "user", "content": "word"} for _ in range(1_000)]
    with pytest.raises(ValueError, match=r"at most \d+ are allowed"):
        render(ENDLESS[0], {"messages": messages})
