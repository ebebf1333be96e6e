"""Answers are read as llama.cpp and sglang read them, wherever their texts are cut, and calls of a history are written
as the models' templates write them: tests/answers/make_answers.py says how the cases were made."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from capstan import fallback
from capstan.fallback import FallbackWarning
from capstan.generation.answer import AnswerStream, parts_as_json
from capstan.text.answer_formats import FORMATS, PLAIN, answer_format
from capstan.text.call_forms import json_text
from capstan.text.call_values import plain_value
from tests.answers.reading import ARGUMENTS, BY_NAME, CASES, TOOLS, WordTokenizer, read, read_anyhow

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ROME = ["weather", {"city": "Rome"}]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Text that is no call gives a warning; other tests have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


def template(known_by: str) -> str:
    return "{% for tool in tools %}" + known_by + "{% endfor %}"


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: case["template"])
def test_an_answer_is_read_as_another_program_reads_it(case: dict[str, Any]) -> None:
    found = read_anyhow(answer_format(template(case["known_by"]), frozenset()), case["text"], begun=case["begun"])
    told = found["reasoning"].strip(), found["answer"].strip(), found["calls"]
    assert told == (case["reasoning"], case["answer"], case["calls"])


@pytest.mark.parametrize("case", CASES["history"], ids=lambda case: case["template"])
def test_a_call_that_a_template_wrote_is_read_back(case: dict[str, Any]) -> None:
    found = read_anyhow(answer_format(template(case["known_by"]), frozenset()), case["text"])
    assert found["calls"] == [["weather", ARGUMENTS]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # The model card of Phi-4-mini, and vLLM's parser of it.
        (
            "Phi-4-mini",
            '<|tool_call|>[{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]',
        ),
        ("Phi-4-mini", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]<|/tool_call|>'),
        ("Phi-4-mini", 'functools[{"name": "weather", "arguments": {"city": "Rome"}}]'),
        # vLLM's parser of Granite 3.0 and 3.1.
        ("Granite 3", '<|tool_call|> [{"name": "weather", "arguments": {"city": "Rome"}}]'),
        ("Hermes and Qwen", '<tool_call> [{"name": "weather", "arguments": {"city": "Rome"}}]'),
        ("Hermes and Qwen", CALL.removesuffix("\n</tool_call>")),
        ("Hermes and Qwen", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>'),
        ("Qwen 3.5 and Qwen3-Coder", "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>"),
        ("Llama 3", '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}'),
        ("Mistral", '[TOOL_CALLS]weather{"city": "Rome"}'),
        ("gpt-oss", '<|channel|>analysis to=functions.weather code<|message|>{"city": "Rome"}<|call|>'),
    ],
)
def test_other_forms_of_a_family_are_calls(name: str, text: str) -> None:
    assert read_anyhow(BY_NAME[name], text)["calls"] == [ROME]


NO_CALLS = [
    ("Hermes and Qwen", "Use <tool_call> to call, `</tool_call>` ends it."),
    ("Hermes and Qwen", CALL.replace("weather", "other")),
    ("Hermes and Qwen", CALL.replace("{", "(")),
    ("Hermes and Qwen", CALL.replace('"Rome"', "'Rome'")),
    ("Hermes and Qwen", '<tool_call>\n{"name": "weather", "argum'),
    ("Hermes and Qwen", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("Hermes and Qwen", '<tool_call>{"name": "weather", "arguments": ' + "[" * 5000),
    ("Hermes and Qwen", '<tool_call>{"name": "weather", "arguments": {"city": ' + "9" * 5000 + "}}</tool_call>"),
    ("Hermes and Qwen", "</tool_call> a <tool"),
    ("GLM", "<tool_call>weather please</tool_call>"),
    ("Qwen 3.5 and Qwen3-Coder", "<tool_call>\n<function=weather>\n<parameter=city>\nRome"),
    ("LFM2", "<|tool_call_start|>[weather('Rome')]<|tool_call_end|>"),
    ("Llama 3", '{"name": "Ann", "parameters": {"age": 3}} is JSON.'),
    ("Llama 3", '{"city": "Rome"}'),
    ("Mistral", "[TOOL_CALLS]weather of Rome"),
    ("Gemma 4", "<|tool_call>weather{}<tool_call|>"),
    ("DeepSeek V3.1", "<｜tool▁calls▁begin｜>weather"),
    ("gpt-oss", "Just text."),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_stays_text(name: str, text: str) -> None:
    found = read(BY_NAME[name], text) if len(text) > 1000 else read_anyhow(BY_NAME[name], text)
    assert (found["answer"], found["calls"]) == (text, [])


def test_what_is_no_call_is_warned_of() -> None:
    for text, words in (
        (CALL.replace("weather", "other"), "not one of the tools"),
        ("<tool_call>a b", "but is not one"),
    ):
        fallback.counted.clear()
        with pytest.warns(FallbackWarning, match=words):
            read(BY_NAME["Hermes and Qwen"], text)
    fallback.counted.clear()
    with pytest.warns(FallbackWarning, match="to no family"):
        assert read(PLAIN, CALL)["answer"] == CALL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(PLAIN, CALL, tools=None)
        read(PLAIN, CALL, forced=True)


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "answer"),
    [
        ("Hermes and Qwen", "<think>Is it `</think>`? Yes.</think>`</think>`", "Is it `</think>`? Yes.", "`</think>`"),
        ("Hermes and Qwen", "a <think>b</think> c", "", "a <think>b</think> c"),
        ("Hermes and Qwen", "<thinking>", "", "<thinking>"),
        ("Hermes and Qwen", " a\n", "", " a\n"),
        ("Hermes and Qwen", "<think>\nhm\n", "hm", ""),
        ("Hermes and Qwen", "", "", ""),
        ("gpt-oss", "<|channel|>analysis<|message|>hm", "hm", ""),
        ("gpt-oss", "<|channel|>ana", "", ""),
        ("gpt-oss", "<|start|>user<|end|>a<|start|>", "", "usera"),
        ("Gemma 4", "a<channel|>b", "", "ab"),
    ],
)
def test_reasoning_is_apart(name: str, text: str, reasoning: str, answer: str) -> None:
    found = read_anyhow(BY_NAME[name], text)
    assert (found["reasoning"], found["answer"]) == (reasoning, answer)


def test_the_whole_text_has_one_pair_of_tags_around_reasoning() -> None:
    """Whatever the model's own marks are, and where the prompt ended with them."""
    assert read(BY_NAME["Gemma 4"], "<|channel>thought\nhm\n<channel|>Yes.")["text"] == "<think>\nhm\n</think>Yes."
    assert read(BY_NAME["Hermes and Qwen"], "hm</think>\n\nYes.", begun=True)["text"] == "<think>hm</think>\n\nYes."
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert read(BY_NAME["gpt-oss"], text)["text"] == "<think>hm</think>Yes."
    brackets = answer_format("[THINK] [ARGS]", frozenset())
    assert read(brackets, "[THINK]hm[/THINK]Yes.")["text"] == "<think>hm</think>Yes."


def test_without_tools_calls_are_text_and_of_several_the_first_may_count() -> None:
    hermes = BY_NAME["Hermes and Qwen"]
    assert read_anyhow(hermes, CALL, tools=None)["answer"] == CALL
    found = read_anyhow(hermes, f"{CALL} and {CALL}", most=1)
    assert (found["calls"], found["answer"], found["text"]) == ([ROME], f" and {CALL}", f"{CALL} and {CALL}")


def test_a_family_is_told_by_the_vocabulary_where_the_template_only_takes_tools() -> None:
    takes = "{{ tools }}"
    assert answer_format(takes, frozenset({"<|tool_call_start|>"})).name == "LFM2"
    assert answer_format(takes, frozenset({"<|im_end|>"})) is PLAIN
    assert answer_format("", frozenset({"<|tool_call_start|>"})) is PLAIN
    assert answer_format(takes, frozenset({"[TOOL_CALLS]", "[THINK]"})).thinking == ("[THINK]", "[/THINK]")


def test_marks_that_are_special_tokens_are_read() -> None:
    words = [
        "<|channel|>",
        "analysis",
        "<|message|>",
        "hm",
        "<|end|>",
        "<|start|>",
        "assistant",
        "commentary to=functions.time",
    ]
    words += [" ", "<|constrain|>", "json", "{}", "<unk>", "final", "Yes STOP no"]
    tokenizer = WordTokenizer(BY_NAME["gpt-oss"], words)
    answer = AnswerStream(tokenizer, "", TOOLS, stops=["STOP"])
    told = []
    for token in (0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 2, 11, 12, None):
        told += parts_as_json(answer.push(token, "anything"))
    told += parts_as_json(answer.end("anything"))
    [thought, call] = told
    assert thought == {"kind": "reasoning", "text": "hm"}
    assert (call["call"]["type"], call["call"]["function"]) == ("function", {"name": "time", "arguments": "{}"})
    assert len(call["call"]["id"]) == 9
    assert answer.summary()["tool_calls"] == [call["call"]]
    stopped = AnswerStream(tokenizer, "", None, stops=["STOP"])
    for token in (0, 13, 2, 14, 14):
        stopped.push(token, "anything")
    stopped.end()
    assert stopped.summary() == {"text": "Yes ", "reasoning": "", "answer": "Yes ", "tool_calls": []}


def test_an_answer_goes_on_from_tokens_that_are_given() -> None:
    """Their parts are not told again."""
    words = ["<think>", "hm", "</think>", "Yes"]
    form = BY_NAME["Hermes and Qwen"]
    for special in ({}, {"<think>": 0, "</think>": 2}):
        tokenizer = WordTokenizer(form, words)
        tokenizer.special_ids = special
        answer = AnswerStream(tokenizer, "")
        answer.begin([0, 1])
        told = parts_as_json([*answer.push(2, "</think>"), *answer.push(3, "Yes"), *answer.end()])
        assert told == [{"kind": "answer", "text": "Yes"}]
    begun = AnswerStream(WordTokenizer(form, words), "<|im_start|>assistant\n<think>\n")
    assert parts_as_json([*begun.push(1, "hm"), *begun.end()]) == [{"kind": "reasoning", "text": "hm"}]


def test_json_of_half_a_pair_stays_text() -> None:
    found = read(BY_NAME["Hermes and Qwen"], CALL.replace("Rome", "\\ud800"))
    assert json_text(found["calls"][0][1]) == '{"city":"\\ud800"}'


MARKS = sorted({mark for form in FORMATS for mark in form.marks})
PIECES = ["<think>", "</think>", "`", " ", "\n", *'{}[]":,()=\\', "weather", "time", '{"city": "Rome"}', "call:", "5"]
PIECES += [
    "to=functions.time",
    "analysis",
    "final",
    "<parameter=city>",
    "</parameter>",
    "<arg_key>city</arg_key>",
    "<arg_value>",
]
TEXTS = [case["text"] for name in ("answers", "history") for case in CASES[name]]


def test_random_texts_are_read_alike_however_they_are_cut() -> None:
    rng = random.Random(6)
    for _ in range(400):
        form = rng.choice(FORMATS)
        text = ""
        for _ in range(rng.randrange(1, 12)):
            others = [rng.choice(MARKS), rng.choice(PIECES), rng.choice(TEXTS)[: rng.randrange(60)]]
            text += rng.choice([*form.marks, *others])
        options: dict[str, Any] = {"begun": rng.random() < 0.2, "forced": rng.random() < 0.1}
        options["most"] = rng.choice([None, 1])
        whole = read(form, text, **options)
        for count in (1, 3, len(text)):
            cuts = sorted(rng.sample(range(len(text)), min(count, len(text))))
            assert read(form, text, cuts, **options) == whole, (form.name, text, cuts, options)


def test_a_long_call_is_not_read_again_for_each_of_its_tokens() -> None:
    hermes, times = BY_NAME["Hermes and Qwen"], 0
    assert hermes.calls is not None

    def counted(cursor: Any, functions: Any) -> Any:
        nonlocal times
        times += 1
        return read_block(cursor, functions)

    read_block = hermes.calls.opening["<tool_call>"]
    form = replace(hermes, calls=replace(hermes.calls, opening={"<tool_call>": counted}))
    given = {"city": "a", "near": ["b"] * 3000}
    text = hermes.calls.write("weather", given)
    assert read(form, text, range(len(text)))["calls"] == [["weather", given]]
    assert times < 200


def test_plain_texts_have_the_types_of_their_schemas() -> None:
    root = {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}, {"$ref": "#/$defs/n"}]}, "n": {"const": 3}}
    }
    wide = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"enum": [True, "x"]}]}
    for schema, document, text, value in (
        ({"type": "string"}, {}, "5", "5"),
        ({"type": ["string", "null"]}, {}, "None", None),
        ({"type": ["string", "integer"]}, {}, "5", 5),
        ({"type": ["string", "integer"]}, {}, "true", "true"),
        ({"type": "number"}, {}, "5", 5),
        ({"type": "boolean"}, {}, "True", True),
        ({"type": "array"}, {}, '["a"] and', '["a"] and'),
        ({"$ref": "#/$defs/a"}, root, "3", 3),
        ({"$ref": "#/$defs/a"}, root, "null", None),
        ({"$ref": "#/$defs/nothing"}, root, "3", 3),
        (wide, wide, "true", True),
        (wide, wide, "5", "5"),
        (None, {}, '{"a": 1}', {"a": 1}),
    ):
        assert plain_value(text, schema, document) == value, (schema, text)


def test_an_answer_that_a_schema_holds_has_no_reasoning() -> None:
    tokenizer = WordTokenizer(BY_NAME["Hermes and Qwen"], ["{}"])
    answer = AnswerStream(tokenizer, "<think>\n", in_json=True)
    assert parts_as_json([*answer.push(0, "{}"), *answer.end()]) == [{"kind": "answer", "text": "{}"}]
