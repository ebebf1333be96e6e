"""Calls that have to be made are held to grammars in the form of each family, whose references mean what jsonschema
says, and earlier calls are as chat templates take them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest

from capstan.errors import GuidanceError, OptionError
from capstan.generation.answer import forced_call
from capstan.guidance import Guidance
from capstan.guidance.vocabulary import SpecialTokens
from capstan.text.answer_formats import ANY_MODEL, FORMATS, PLAIN, AnswerFormat
from capstan.text.answer_reader import functions_of
from capstan.text.call_forms import Parameters, json_text
from capstan.text.call_grammar import call_grammar, without
from capstan.text.call_history import history_for
from capstan.text.chat_template import render
from tests.answers.reading import ARGUMENTS, BY_NAME, CASES, TOOLS, WordTokenizer, read, read_anyhow


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_each_format_reads_what_it_writes_and_what_its_grammar_allows(form: AnswerFormat) -> None:
    assert form.calls is not None
    assert read_anyhow(form, form.calls.write("weather", ARGUMENTS))["calls"] == [["weather", ARGUMENTS]]
    given = {"city": 'R"o\n</b>me', "days": 5, "flag": False}
    text = form.calls.write("weather", given)
    assert read_anyhow(form, text)["calls"] == [["weather", given]]
    functions = functions_of(TOOLS)
    assert fits(form, functions, text)
    marks = [mark for mark in form.marks if mark[0] in "<[" and "NAME" not in mark]
    ids = {mark: 300 + number for number, mark in enumerate(marks)}
    for begun in (False, True):
        data = call_grammar(form, functions, ids, begun=begun)
        automaton = Guidance("lark_grammar", data, special=lambda: SpecialTokens(ids)).automaton()
        assert not automaton.ambiguous, "the GPU makes its masks"
    assert not fits(form, {"time": None}, text)
    # A list or an object within Python's call is written as JSON.
    assert fits(form, functions, form.calls.write("weather", ARGUMENTS)) == (form.name != "LFM2")
    assert not fits(form, functions, form.calls.write("weather", {"days": 5}))
    assert not fits(form, functions, form.calls.write("weather", {**given, "days": "5 or 6"}))
    assert fits(form, functions, form.calls.write("time", {}))
    thought = f"a <b> {form.thinking[1][:-1]} c"
    assert form.channels or fits(form, functions, f"{thought}{form.thinking[1]}\n{text}", begun=True)
    assert form.channels or not fits(
        form, functions, f"{form.thinking[1]}{thought}{form.thinking[1]}{text}", begun=True
    )


def outer_text(own: Parameters, value: Any) -> str:
    """A string as the family writes it, anything else as JSON."""
    return own.written(value) if isinstance(value, str) else json_text(value)


@lru_cache
def automaton_for(data: str) -> Any:
    return Guidance("lark_grammar", data).automaton()


def fits(form: AnswerFormat, functions: Mapping[str, Any], text: str, **options: Any) -> bool:
    """Whether a text is a call by the grammar."""
    data = call_grammar(form, functions, {}, begun=options.get("begun", False), optional=options.get("optional", False))
    automaton = automaton_for(data)
    position = automaton.after(automaton.start, text.encode())
    return position is not None and automaton.may_end(position)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_references_in_parameters_mean_what_they_mean_there(form: AnswerFormat) -> None:
    """jsonschema says which arguments fit."""
    for case in CASES["references"]:
        assert form.calls is not None
        forms = [form.calls, ANY_MODEL]
        if own := form.calls.parameters:
            forms.append(replace(form.calls, parameters=replace(own, written=partial(outer_text, own))))
        texts = [each.write("weather", case["arguments"]) for each in forms]
        allowed = [fits(form, {"weather": case["schema"]}, text) for text in texts]
        assert any(allowed) == case["fits"], case
        for text, is_call in zip(texts, allowed, strict=True):
            if is_call:
                tools = [{"function": {"name": "weather", "parameters": case["schema"]}}]
                assert read(form, text, tools=tools, forced=True)["calls"] == [["weather", case["arguments"]]]


def test_constraints_that_a_family_cannot_write_are_held_in_json() -> None:
    """XML's strings have no pattern."""
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}$"}},
        "required": ["code"],
    }
    form = BY_NAME["Qwen 3.5 and Qwen3-Coder"]
    assert form.calls is not None
    for code, good in (("AB", True), ("ab", False)):
        text = ANY_MODEL.write("weather", {"code": code})
        assert fits(form, {"weather": schema}, text) == good
    tools = [{"function": {"name": "weather", "parameters": schema}}]
    assert read_anyhow(form, ANY_MODEL.write("weather", {"code": "AB"}), tools=tools, forced=True)["calls"]
    short = {"type": "object", "properties": {"code": {"type": "string", "maxLength": 2, "minLength": 1}}}
    for code, good in (("a", True), ("", False), ("abc", False)):
        assert fits(form, {"weather": short}, form.calls.write("weather", {"code": code})) == good


def test_a_call_that_has_to_be_made_is_of_one_of_the_tools() -> None:
    tokenizer = WordTokenizer(BY_NAME["Granite 3"], ["<|tool_call|>"])
    data = forced_call(tokenizer, "", TOOLS, ["time"])
    assert data.splitlines()[1].startswith("call_0: <[0]> ")
    guidance = Guidance("lark_grammar", data, special=lambda: SpecialTokens(tokenizer.special_ids))
    assert not guidance.automaton().ambiguous
    for names, message in (
        (["now"], "'now' must be called but is not one of the tools: weather, time"),
        ([], "there are no"),
    ):
        with pytest.raises(OptionError, match=message):
            forced_call(tokenizer, "", TOOLS, names)
    bad = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "not": {}}}}]
    with pytest.raises(GuidanceError, match=r"parameters of a: json_schema #"):
        forced_call(tokenizer, "", bad, ["a"])


def test_an_expression_takes_all_texts_without_a_mark() -> None:
    for mark in ("</think>", "[/THINK]", "<|end|>", "<channel|>"):
        expression = re.compile(without(mark))
        for text in ("", "a<b", mark[:-1] + " ", "<<a>> [[b]]", "</table> <|a|> [/INST]"):
            assert expression.fullmatch(text), (mark, text)
        assert not expression.fullmatch(f"a{mark}")


def test_values_that_may_be_of_several_types_are_json_in_every_form() -> None:
    schema = {
        "type": "object",
        "properties": {
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "unit": {"$ref": "#/$defs/Unit"},
            "spans": {"type": "array", "items": {"type": "object", "properties": {"unit": {"$ref": "#/$defs/Unit"}}}},
        },
        "required": ["note"],
        "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
    }
    tools = [{"function": {"name": "weather", "parameters": schema}}]
    xml = "<tool_call>\n<function=weather>\n<parameter=note>\n{}\n</parameter>\n<parameter=unit>\n{}\n</parameter>\n"
    gemma = '<|tool_call>call:weather{{note:{},unit:<|"|>{}<|"|>,spans:[{{unit:<|"|>C<|"|>}}]}}<tool_call|>'
    forms: tuple[tuple[str, str, list[Any]], ...] = (
        ("Qwen 3.5 and Qwen3-Coder", xml + "</function>\n</tool_call>", []),
        ("Gemma 4", gemma, [{"unit": "C"}]),
    )
    for name, text, spans in forms:
        for note, value in (("null", None), ('"5"', "5"), ('"a\\n"', "a\n")):
            told = {"note": value, "unit": "F", **({"spans": spans} if spans else {})}
            assert fits(BY_NAME[name], {"weather": schema}, text.format(note, "F"))
            assert read_anyhow(BY_NAME[name], text.format(note, "F"), tools=tools)["calls"] == [["weather", told]]
            assert not fits(BY_NAME[name], {"weather": schema}, text.format(note, "K"))
        assert not fits(BY_NAME[name], {"weather": schema}, text.format("5", "F"))


ASKED = {"role": "user", "content": "How?"}
CALLED = {"id": "call_0123", "type": "function", "function": {"name": "time", "arguments": '{"zone": "it\'s"}'}}
TEMPLATES = {
    "{{ c.function.arguments | tojson }}": '{"zone": "it\'s"}',
    "{{ c.function.arguments + '' }}": '{"zone": "it\'s"}',
    "{% if m.content is none %}{{ c.function.arguments | tojson }}{% endif %}": '{"zone": "it\'s"}',
    "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}": "zone=it's",
    "": '<tool_call>\n{"name": "time", "arguments": {"zone": "it\'s"}}\n</tool_call>',
}


@pytest.mark.parametrize(
    "given", [CALLED, {**CALLED, "function": {"name": "time", "arguments": {"zone": "it's"}}}], ids=str
)
@pytest.mark.parametrize("body", TEMPLATES)
def test_earlier_calls_are_as_the_template_takes_them(body: str, given: dict[str, Any]) -> None:
    name = "{{ c.function.name }} " if body else ""
    whole = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}" + name + body
    whole += "{% endfor %}{% endfor %}"
    answer = {"role": "assistant", "content": "Look: ", "tool_calls": [given]}

    def rendered(messages: Sequence[Mapping[str, Any]]) -> str:
        return render(whole, {"messages": messages})

    hermes = BY_NAME["Hermes and Qwen"]
    only = history_for([ASKED, {**answer, "content": ""}], whole, hermes, rendered)
    assert rendered(only) == "How?" + (f"time {TEMPLATES[body]}" if body else TEMPLATES[body])
    # A template that takes calls without a text alone has them in the text.
    both = rendered(history_for([ASKED, answer], whole, hermes, rendered))
    assert both.startswith("How?Look: ")
    assert "it's" in both
    assert history_for([ASKED], whole, hermes, rendered) == [ASKED]
    # Missing content stays missing, if the template takes that.
    absent = history_for([{"role": "assistant", "tool_calls": [given]}], whole, hermes, rendered)[0]
    assert ("content" in absent) == ("is none" in body or not body)
    for odd in (5, "a", [5], [{"function": 5}], [{"function": {"name": "time", "arguments": 5}}]):
        history_for([ASKED, {**answer, "tool_calls": odd}], whole, hermes, rendered)


def test_ids_are_of_nine_characters_and_thoughts_named_as_the_template_asks() -> None:
    whole = "{% for m in messages %}{{ m.thinking }}{% for c in m.tool_calls or [] %}"
    whole += "{% if c.id | length != 9 %}{{ raise_exception('id') }}"
    whole += "{% endif %}{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}{% endfor %}"
    answer = {"role": "assistant", "content": "", "tool_calls": [CALLED], "reasoning_content": "hm"}
    told = {"role": "tool", "tool_call_id": "call_0123", "content": "9"}
    form = BY_NAME["Mistral"]
    first, second = history_for([answer, told], whole, form, lambda messages: render(whole, {"messages": messages}))
    assert first["thinking"] == "hm"
    assert first["tool_calls"][0]["id"] == second["tool_call_id"] != "call_0123"
    assert len(second["tool_call_id"]) == 9


@pytest.mark.parametrize("form", [*FORMATS, PLAIN], ids=lambda form: form.name)
def test_an_answer_may_be_text_and_a_call_in_it_is_held(form: AnswerFormat) -> None:
    functions = functions_of(TOOLS)
    marks = [mark for mark in form.marks if mark[0] in "<[" and "NAME" not in mark]
    ids = {mark: 300 + number for number, mark in enumerate(marks)}
    for begun in (False, True):
        data = call_grammar(form, functions, ids, begun=begun and not form.channels, optional=True)
        automaton = Guidance("lark_grammar", data, special=lambda: SpecialTokens(ids)).automaton()
        assert not automaton.ambiguous, "the GPU makes its masks"
    own = form.calls or ANY_MODEL
    call = own.write("weather", {"city": "Rome", "days": 5, "flag": False})
    in_json = own.before[0].startswith("{")
    said = "<|channel|>final<|message|>It is <b>warm</b>." if form.channels else "It is <b>warm</b> [so]."
    reasons = f"{form.thinking[0]}Hm, {own.before[0][:-1]}.{form.thinking[1]}\n"
    for text, good in {
        **({"": True, " ": True, "\n" + call: True, said + call: True} if not form.channels else {}),
        said: True,
        call: True,
        own.write("weather", {"days": 5}): False,
        own.write("now", {}): False,
        call + "more": False,
        call[:-1]: False,
        **({reasons + said: True, reasons + call: True} if form.thinking[0][0] == "<" and not form.channels else {}),
    }.items():
        assert fits(form, functions, text, optional=True) == good, text
        if good:
            held = read_anyhow(form, text, held=True)
            called = call in text and not (in_json and said in text)
            assert held["calls"] == ([["weather", {"city": "Rome", "days": 5, "flag": False}]] if called else [])


def test_only_what_the_grammar_watches_is_a_held_call() -> None:
    form = BY_NAME["Phi-4-mini"]
    unwatched = 'functools[{"name": "time", "arguments": {}}]'
    assert read_anyhow(form, unwatched)["calls"] == [["time", {}]]
    assert read_anyhow(form, unwatched, held=True) == {
        "reasoning": "",
        "answer": unwatched,
        "calls": [],
        "text": unwatched,
    }
